/* The text is bytes of UTF-8 with a cursor. After keys it is drawn again:
 *
 *     > a text is cut into rows at the width of the term
 *     inal, and at line breaks                                 rows of a text that is longer than the terminal
 *     . where the next row begins with a dot                   is high: those up to the cursor's
 *
 * Rows end with explicit line breaks, so nothing depends on how a terminal wraps. */
#include "cli/chat/line.h"

#include "cli/cli.h"

#include "train/model/out.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

struct cli_line {
    struct termios before;
    const char *prompt;
    char *text; /* [room] `bytes` of them and a NUL */
    size_t bytes, room, cursor;
    char **history, *draft; /* [count] earlier turns; what is being typed while one of them is shown */
    size_t count, shown;
    size_t above; /* rows that are drawn above the cursor's */
    int over, failed;
    train_out out;
    char in[4096]; /* read, and not yet used: from in_at */
    size_t in_at, in_bytes;
};

/* ---- text ------------------------------------------------------------------------------------------------- */

static void insert(cli_line *l, const char *text, size_t bytes) {
    if (l->bytes + bytes + 1 > l->room) {
        size_t room = 2 * (l->bytes + bytes) + 256;
        char *grown = realloc(l->text, room);
        l->failed |= !grown;
        if (!grown) return;
        l->text = grown;
        l->room = room;
    }
    memmove(l->text + l->cursor + bytes, l->text + l->cursor, l->bytes - l->cursor);
    if (bytes) memcpy(l->text + l->cursor, text, bytes);
    l->bytes += bytes;
    l->cursor += bytes;
    l->text[l->bytes] = '\0';
}

static void cut(cli_line *l, size_t from, size_t to) {
    RAVEL_ASSERT(from <= to && to <= l->bytes);
    memmove(l->text + from, l->text + to, l->bytes - to + 1);
    l->bytes -= to - from;
    l->cursor = from;
}

static int is_inner(char c) {
    return ((unsigned char)c & 0xc0) == 0x80;
}

static size_t left_of(const cli_line *l, size_t at) {
    if (at > 0) at--;
    while (at > 0 && is_inner(l->text[at])) at--;
    return at;
}

static size_t right_of(const cli_line *l, size_t at) {
    if (at < l->bytes) at++;
    while (at < l->bytes && is_inner(l->text[at])) at++;
    return at;
}

static int is_gap(char c) {
    return c == ' ' || c == '\n' || c == '\t';
}

static size_t word_left(const cli_line *l) {
    size_t at = l->cursor;
    while (at > 0 && is_gap(l->text[at - 1])) at--;
    while (at > 0 && !is_gap(l->text[at - 1])) at--;
    return at;
}

static size_t word_right(const cli_line *l) {
    size_t at = l->cursor;
    while (at < l->bytes && is_gap(l->text[at])) at++;
    while (at < l->bytes && !is_gap(l->text[at])) at++;
    return at;
}

/* `by` 1 or -1. What is being typed is kept while earlier turns are looked at. */
static void look_back(cli_line *l, int by) {
    if (by < 0 ? l->shown == 0 : l->shown == l->count) return;
    if (l->shown == l->count) {
        free(l->draft);
        l->draft = strdup(l->text);
    }
    l->shown += (size_t)by;
    const char *text = l->shown == l->count ? l->draft : l->history[l->shown];
    cut(l, 0, l->bytes);
    if (text) insert(l, text, strlen(text));
}

static void remember(cli_line *l) {
    if (l->bytes == 0 || (l->count && strcmp(l->history[l->count - 1], l->text) == 0)) return;
    char *text = strdup(l->text), **grown = realloc(l->history, (l->count + 1) * sizeof *grown);
    if (grown) l->history = grown;
    if (grown && text)
        grown[l->count++] = text;
    else
        free(text);
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

/* Columns of a character: Unicode's wide blocks and the marks that stand on another character. */
static int width_of(unsigned c) {
    static const struct {
        unsigned from, to;
        int width;
    } blocks[] = {{0x300, 0x36f, 0},     {0x1100, 0x115f, 2},   {0x200b, 0x200f, 0},   {0x20d0, 0x20ff, 0},
                  {0x2e80, 0x303e, 2},   {0x3041, 0xa4cf, 2},   {0xac00, 0xd7a3, 2},   {0xf900, 0xfaff, 2},
                  {0xfe00, 0xfe0f, 0},   {0xfe30, 0xfe6f, 2},   {0xff00, 0xff60, 2},   {0xffe0, 0xffe6, 2},
                  {0x1f300, 0x1f64f, 2}, {0x1f680, 0x1f6ff, 2}, {0x1f900, 0x1f9ff, 2}, {0x20000, 0x3fffd, 2}};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (c >= blocks[i].from && c <= blocks[i].to) return blocks[i].width;
    return 1;
}

static unsigned code_of(const char *s, size_t bytes) {
    unsigned c = (unsigned char)*s;
    if (bytes > 1) c &= 0xffu >> (bytes + 1);
    for (size_t i = 1; i < bytes; i++) c = c << 6 | ((unsigned char)s[i] & 0x3f);
    return c;
}

typedef struct window {
    size_t width, top, end; /* rows top .. end - 1 are drawn */
    int draw;
    size_t row, column;
} window;

static void put(cli_line *l, const window *w, const char *text, size_t bytes) {
    if (w->draw && w->row >= w->top && w->row < w->end) train_out_put(&l->out, text, bytes);
}

static void next_row(cli_line *l, window *w, const char *begin) {
    w->row++;
    if (w->row > w->top) put(l, w, "\r\n", 2);
    w->column = strlen(begin);
    put(l, w, begin, w->column);
}

/* The row and column after the first `bytes` of the text. */
static void lay_out(cli_line *l, window *w, size_t bytes) {
    w->row = 0;
    w->column = strlen(l->prompt);
    put(l, w, l->prompt, w->column);
    for (size_t at = 0, next; at < bytes; at = next) {
        const char *c = l->text + at;
        next = right_of(l, at);
        if (*c == '\n') {
            next_row(l, w, ". ");
            continue;
        }
        size_t wide = (size_t)width_of(code_of(c, next - at));
        if (w->column + wide > w->width) next_row(l, w, "");
        put(l, w, (unsigned char)*c < ' ' ? " " : c, (unsigned char)*c < ' ' ? 1 : next - at);
        w->column += wide;
    }
    if (w->column >= w->width) next_row(l, w, "");
}

static void write_out(cli_line *l) {
    for (size_t at = 0; at < l->out.used;) {
        ssize_t written = write(STDOUT_FILENO, l->out.data + at, l->out.used - at);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) break;
        at += (size_t)written;
    }
    l->failed |= l->out.failed;
    l->out.used = 0;
}

/* From the row that the cursor was in. */
static void draw(cli_line *l) {
    struct winsize size;
    int known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 4 && size.ws_row > 0;
    size_t height = known ? size.ws_row : 24;
    window cursor = {.width = known ? size.ws_col : 80}, all = cursor;
    lay_out(l, &cursor, l->cursor);
    all.top = cursor.row >= height ? cursor.row - height + 1 : 0;
    all.end = all.top + height;
    all.draw = 1;
    if (l->above) train_out_print(&l->out, "\033[%zuA", l->above);
    train_out_puts(&l->out, "\r\033[J");
    lay_out(l, &all, l->bytes);
    size_t last = all.row < all.end ? all.row : all.end - 1;
    if (l->cursor < l->bytes) {
        if (last > cursor.row) train_out_print(&l->out, "\033[%zuA", last - cursor.row);
        train_out_puts(&l->out, "\r");
        if (cursor.column) train_out_print(&l->out, "\033[%zuC", cursor.column);
    }
    l->above = cursor.row - all.top;
    write_out(l);
}

/* ---- keys --------------------------------------------------------------------------------------------------- */

enum { NO_MORE = -1, PASTE = 256, LEFT, RIGHT, UP, DOWN, FIRST, LAST, DELETE, WORD_LEFT, WORD_RIGHT, BREAK, NOTHING };

/* The next byte, or NO_MORE after `wait` milliseconds (-1: of any number) or at a signal to stop. */
static int next_byte(cli_line *l, int wait) {
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    while (l->in_at == l->in_bytes) {
        if (cli_stop || (wait >= 0 && poll(&in, 1, wait) == 0)) return NO_MORE;
        ssize_t got = read(STDIN_FILENO, l->in, sizeof l->in);
        if (got == 0 || (got < 0 && errno != EINTR)) return NO_MORE;
        l->in_at = 0;
        l->in_bytes = got > 0 ? (size_t)got : 0;
    }
    return (unsigned char)l->in[l->in_at++];
}

/* After an escape character. */
static int escape(cli_line *l) {
    static const struct {
        const char *code;
        int key;
    } codes[] = {{"A", UP},          {"B", DOWN},     {"C", RIGHT},         {"D", LEFT},         {"H", FIRST},
                 {"F", LAST},        {"1~", FIRST},   {"4~", LAST},         {"7~", FIRST},       {"8~", LAST},
                 {"3~", DELETE},     {"200~", PASTE}, {"1;5C", WORD_RIGHT}, {"1;5D", WORD_LEFT}, {"1;3C", WORD_RIGHT},
                 {"1;3D", WORD_LEFT}};
    char code[16] = "";
    size_t used = 0;
    int c = next_byte(l, 50);
    if (c == '\r' || c == '\n') return BREAK;
    if (c == 'b' || c == 'f') return c == 'b' ? WORD_LEFT : WORD_RIGHT;
    if (c != '[' && c != 'O') return NOTHING;
    do {
        c = next_byte(l, 50);
        if (c >= 0 && used + 1 < sizeof code) code[used++] = (char)c;
    } while (c >= ' ' && c < '@');
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (strcmp(code, codes[i].code) == 0) return codes[i].key;
    return NOTHING;
}

/* Line breaks of a terminal are carriage returns; what is no text is left out. */
static void clean(cli_line *l, size_t from) {
    size_t to = from;
    char before = 0;
    for (size_t at = from; at < l->cursor; at++) {
        char c = l->text[at];
        int text = (unsigned char)c >= ' ' && c != 127, pair = c == '\n' && before == '\r';
        if (text || c == '\t' || c == '\r' || (c == '\n' && !pair)) l->text[to++] = c;
        if (c == '\r') l->text[to - 1] = '\n';
        before = c;
    }
    cut(l, to, l->cursor);
}

/* Up to the end that the terminal sends. */
static void paste(cli_line *l) {
    static const char end[] = "\033[201~";
    const size_t length = sizeof end - 1, from = l->cursor;
    for (int c; !l->failed && (c = next_byte(l, -1)) >= 0;) {
        insert(l, &(char){(char)c}, 1);
        if (l->cursor - from < length || memcmp(l->text + l->cursor - length, end, length) != 0) continue;
        cut(l, l->cursor - length, l->cursor);
        break;
    }
    clean(l, from);
}

static void restore(const cli_line *l) {
    static const char off[] = "\033[?2004l";
    ssize_t written = write(STDOUT_FILENO, off, sizeof off - 1);
    (void)written;
    (void)tcsetattr(STDIN_FILENO, TCSADRAIN, &l->before);
}

/* Keys one by one, and pasted text in brackets. */
static int take_terminal(cli_line *l) {
    static const char on[] = "\033[?2004h";
    if (tcgetattr(STDIN_FILENO, &l->before) != 0) return 0;
    struct termios raw = l->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | ISIG | IEXTEN);
    raw.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | IXON | ISTRIP);
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    if (tcsetattr(STDIN_FILENO, TCSADRAIN, &raw) != 0) return 0;
    ssize_t written = write(STDOUT_FILENO, on, sizeof on - 1);
    (void)written;
    return 1;
}

static void suspend(cli_line *l) {
    restore(l);
    (void)raise(SIGTSTP);
    (void)take_terminal(l);
    l->above = 0;
}

static size_t first_of(const cli_line *l) {
    (void)l;
    return 0;
}
static size_t last_of(const cli_line *l) {
    return l->bytes;
}
static size_t char_left(const cli_line *l) {
    return left_of(l, l->cursor);
}
static size_t char_right(const cli_line *l) {
    return right_of(l, l->cursor);
}

enum { CTRL = 'A' - 1 }; /* Ctrl-A is 'A' - CTRL */

/* Keys that move the cursor, or cut what lies between it and there. */
static const struct move {
    int key, cuts;
    size_t (*to)(const cli_line *l);
} moves[] = {{FIRST, 0, first_of},        {'A' - CTRL, 0, first_of},   {LAST, 0, last_of},
             {'E' - CTRL, 0, last_of},    {LEFT, 0, char_left},        {'B' - CTRL, 0, char_left},
             {RIGHT, 0, char_right},      {'F' - CTRL, 0, char_right}, {WORD_LEFT, 0, word_left},
             {127, 1, char_left},         {'H' - CTRL, 1, char_left},  {DELETE, 1, char_right},
             {'D' - CTRL, 1, char_right}, {'K' - CTRL, 1, last_of},    {'U' - CTRL, 1, first_of},
             {'W' - CTRL, 1, word_left},  {WORD_RIGHT, 0, word_right}};

static void move(cli_line *l, const struct move *m) {
    size_t to = m->to(l), from = l->cursor;
    if (m->cuts)
        cut(l, to < from ? to : from, to < from ? from : to);
    else
        l->cursor = to;
}

/* An empty line and Ctrl-D or Ctrl-C, or a signal. */
static int leave(cli_line *l, int number) {
    if (number) cli_stop = number;
    l->over = 1;
    return 1;
}

/* Returns 1 where the turn is complete. */
static int press(cli_line *l, int key) {
    if (key == '\r' || key == '\n') return 1;
    if (key == NO_MORE || (key == 'D' - CTRL && l->bytes == 0)) return leave(l, 0);
    if (key == 'C' - CTRL && l->bytes == 0) return leave(l, SIGINT);
    for (size_t i = 0; i < sizeof moves / sizeof *moves; i++)
        if (moves[i].key == key) move(l, &moves[i]);
    if (key == 'C' - CTRL) cut(l, 0, l->bytes);
    if (key == 'L' - CTRL) l->above = 0, train_out_puts(&l->out, "\033[H\033[2J");
    if (key == 'Z' - CTRL) suspend(l);
    if (key == UP || key == 'P' - CTRL) look_back(l, -1);
    if (key == DOWN || key == 'N' - CTRL) look_back(l, 1);
    if (key == PASTE) paste(l);
    if (key == BREAK) insert(l, "\n", 1);
    if ((key >= ' ' && key < 127) || (key > 127 && key < 256)) insert(l, &(char){(char)key}, 1);
    return 0;
}

/* ---- public functions --------------------------------------------------------------------------------------- */

cli_line *cli_line_open(void) {
    const char *term = getenv("TERM");
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !term || strcmp(term, "dumb") == 0) return NULL;
    return calloc(1, sizeof(cli_line));
}

void cli_line_free(cli_line *l) {
    if (!l) return;
    for (size_t i = 0; i < l->count; i++) free(l->history[i]);
    free(l->history);
    free(l->draft);
    free(l->text);
    train_out_free(&l->out);
    free(l);
}

const char *cli_line_read(cli_line *l, const char *prompt, size_t *bytes) {
    int done = 0, drawn = 0;
    l->prompt = prompt;
    l->bytes = l->cursor = l->above = 0;
    l->shown = l->count;
    l->over = 0;
    insert(l, "", 0);
    if (l->failed || !take_terminal(l)) return NULL;
    while (!done && !l->failed) {
        if (!drawn && l->in_at == l->in_bytes) draw(l), drawn = 1;
        int key = next_byte(l, -1);
        done = press(l, key == 27 ? escape(l) : key);
        drawn &= done;
    }
    if (!drawn || l->cursor < l->bytes) l->cursor = l->bytes, draw(l);
    train_out_puts(&l->out, l->over ? "" : "\r\n");
    write_out(l);
    restore(l);
    remember(l);
    *bytes = l->bytes;
    return l->over || l->failed ? NULL : l->text;
}
