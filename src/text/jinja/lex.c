/* A template's text to tokens.
 *
 *     text {%- if a %}  more        text between tags is data; a tag is names, strings, numbers and operators
 *     \__/ \________/ \___/
 *     data   tokens    data
 *
 * White space, as transformers asks Jinja to: the line end after a block or comment is dropped, and so are the
 * blanks before a block or comment that begins its line. A minus at a tag's end drops all white space there, a plus
 * none. */
#include "text/jinja/jinja.h"

#include "base/assert.h"
#include "base/number.h"
#include "text/unicode/unicode.h"

#include <string.h>

typedef struct lexer {
    jinja_template *t;
    const char *text;
    size_t bytes, at;
    int32_t line;
    int begins_line; /* the text at `at` begins a line */
    ravel_error *err;
} lexer;

/* ---- the template's memory ------------------------------------------------------------------------------ */

const char *ravel__jinja_intern(jinja_template *t, const char *text, size_t bytes) {
    for (size_t i = 0; i < t->name_count; i++)
        if (strncmp(t->names[i], text, bytes) == 0 && t->names[i][bytes] == '\0') return t->names[i];
    if (t->name_count == t->name_room) {
        size_t room = 2 * t->name_room + 64;
        const char **names = ravel__arena_push(&t->arena, room, sizeof *names);
        if (!names) return NULL;
        if (t->name_count) memcpy(names, t->names, t->name_count * sizeof *names);
        t->names = names;
        t->name_room = room;
    }
    char *copy = ravel__arena_push(&t->arena, bytes + 1, 1);
    if (!copy) return NULL;
    memcpy(copy, text, bytes);
    copy[bytes] = '\0';
    return t->names[t->name_count++] = copy;
}

static jinja_token *push(lexer *l, int kind) {
    jinja_template *t = l->t;
    if (t->token_count == t->token_room) {
        size_t room = 2 * t->token_room + 256;
        jinja_token *tokens = ravel__arena_push(&t->arena, room, sizeof *tokens);
        if (!tokens) return NULL;
        if (t->token_count) memcpy(tokens, t->tokens, t->token_count * sizeof *tokens);
        t->tokens = tokens;
        t->token_room = room;
    }
    jinja_token *token = &t->tokens[t->token_count++];
    *token = (jinja_token){.kind = kind, .line = l->line};
    return token;
}

static ravel_status no_memory(const lexer *l) {
    return ravel__no_memory(l->err, l->bytes, "a chat template");
}

static ravel_status wrong(const lexer *l, const char *what) {
    return ravel_error_set(l->err, RAVEL_E_DATA, "chat template, line %d: %s", l->line, what);
}

/* ---- white space ---------------------------------------------------------------------------------------- */

static void move(lexer *l, size_t to) {
    RAVEL_ASSERT(to >= l->at && to <= l->bytes);
    for (; l->at < to; l->at++) l->line += l->text[l->at] == '\n';
}

static int starts(const lexer *l, size_t at, const char *word) {
    size_t n = strlen(word);
    return at + n <= l->bytes && memcmp(l->text + at, word, n) == 0;
}

static size_t after_spaces(const lexer *l, size_t at) {
    return at + ravel__spaces_after(l->text + at, l->bytes - at);
}

/* What is left of the data text[from .. to) before a tag with this sign. */
static size_t trimmed(const lexer *l, size_t from, size_t to, char sign, int is_output) {
    if (sign == '-') return to - ravel__spaces_before(l->text + from, to - from);
    if (sign == '+' || is_output) return to;
    size_t line = to;
    while (line > from && l->text[line - 1] != '\n') line--;
    if (line == from && !l->begins_line) return to;
    return to - ravel__spaces_before(l->text + line, to - line) == line ? line : to;
}

static ravel_status push_data(lexer *l, size_t from, size_t to) {
    RAVEL_ASSERT(from <= to);
    if (from == to) return RAVEL_OK;
    jinja_token *token = push(l, JINJA_T_DATA);
    if (!token) return no_memory(l);
    token->text = l->text + from;
    token->bytes = to - from;
    return RAVEL_OK;
}

/* If a tag ends at `at`, moves past it and its white space. `end` is "%}", "}}" or "#}". */
static int take_end(lexer *l, size_t at, const char *end) {
    int minus = at < l->bytes && l->text[at] == '-', plus = at < l->bytes && l->text[at] == '+';
    int is_output = *end == '}';
    size_t here = at + (size_t)(minus || (plus && !is_output));
    if (!starts(l, here, end)) return 0;
    size_t to = here + 2;
    if (minus)
        to = after_spaces(l, to);
    else if (!is_output && here == at && to < l->bytes && l->text[to] == '\n')
        to++;
    move(l, to);
    l->begins_line = l->text[to - 1] == '\n';
    return 1;
}

/* ---- tokens inside a tag -------------------------------------------------------------------------------- */

static int is_digit(char c) {
    return c >= '0' && c <= '9';
}
static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static int hex_digits(const char *text, int count, uint32_t *value) {
    *value = 0;
    for (int i = 0; i < count; i++) {
        char c = text[i];
        int digit = is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (digit < 0) return 0;
        *value = *value * 16 + (uint32_t)digit;
    }
    return 1;
}

/* One escape after a backslash; how many bytes of the text it takes, 0: it is none and the backslash stays. */
static size_t unescape(const char *text, size_t bytes, char *out, size_t *written) {
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *found = *text ? strchr(from, *text) : NULL;
    if (found) return out[(*written)++] = to[found - from], 1;
    if (*text == '\n') return 1;
    int digits = *text == 'x' ? 2 : *text == 'u' ? 4 : *text == 'U' ? 8 : 0;
    uint32_t point = 0;
    if (digits && bytes > (size_t)digits && hex_digits(text + 1, digits, &point) && point <= 0x10ffff &&
        !(point >= 0xd800 && point < 0xe000))
        return *written += ravel__utf8_put(out + *written, point), 1 + (size_t)digits;
    if (*text < '0' || *text > '7') return 0;
    size_t n = 0;
    while (n < 3 && n < bytes && text[n] >= '0' && text[n] <= '7') point = point * 8 + (uint32_t)(text[n++] - '0');
    *written += ravel__utf8_put(out + *written, point);
    return n;
}

static ravel_status lex_string(lexer *l) {
    char quote = l->text[l->at];
    size_t end = l->at + 1, written = 0;
    while (end < l->bytes && l->text[end] != quote) end += l->text[end] == '\\' ? 2 : 1;
    if (end >= l->bytes) return wrong(l, "a string has no end");
    char *out = ravel__arena_push(&l->t->arena, 2 * (end - l->at) + 8, 1);
    jinja_token *token = push(l, JINJA_T_STRING);
    if (!out || !token) return no_memory(l);
    for (size_t i = l->at + 1; i < end;) {
        if (l->text[i] != '\\') {
            out[written++] = l->text[i++];
            continue;
        }
        size_t n = unescape(l->text + i + 1, end - i - 1, out, &written);
        if (!n) out[written++] = '\\';
        i += 1 + n;
    }
    token->text = out;
    token->bytes = written;
    move(l, end + 1);
    return RAVEL_OK;
}

static ravel_status lex_number(lexer *l) {
    char digits[64];
    size_t n = 0, at = l->at;
    int real = 0;
    for (; at < l->bytes && n + 1 < sizeof digits; at++) {
        char c = l->text[at];
        if (c == '_') continue;
        int point = c == '.' && !real && at + 1 < l->bytes && is_digit(l->text[at + 1]);
        int power =
            (c | 32) == 'e' && at + 1 < l->bytes && (is_digit(l->text[at + 1]) || strchr("+-", l->text[at + 1]));
        int sign = (c == '+' || c == '-') && n && (digits[n - 1] | 32) == 'e';
        if (!is_digit(c) && !point && !power && !sign) break;
        real |= point || power;
        digits[n++] = c;
    }
    digits[n] = '\0';
    jinja_token *token = push(l, real ? JINJA_T_REAL : JINJA_T_INT);
    if (!token) return no_memory(l);
    token->real = ravel__number_read(digits, NULL);
    if (!real && token->real >= 9.2e18) return wrong(l, "a whole number is above 2^63");
    for (size_t i = 0; i < n && !real; i++) token->integer = token->integer * 10 + (digits[i] - '0');
    move(l, at);
    return RAVEL_OK;
}

static ravel_status lex_name(lexer *l) {
    size_t end = l->at;
    while (end < l->bytes && (is_letter(l->text[end]) || is_digit(l->text[end]))) end++;
    jinja_token *token = push(l, JINJA_T_NAME);
    if (!token || !(token->text = ravel__jinja_intern(l->t, l->text + l->at, end - l->at))) return no_memory(l);
    token->bytes = end - l->at;
    move(l, end);
    return RAVEL_OK;
}

static ravel_status lex_operator(lexer *l, int *open) {
    static const char *const known[] = {"**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!starts(l, l->at, known[i])) continue;
        jinja_token *token = push(l, JINJA_T_OPERATOR);
        if (!token || !(token->text = ravel__jinja_intern(l->t, known[i], strlen(known[i])))) return no_memory(l);
        *open += strchr("([{", *known[i]) != NULL;
        *open -= strchr(")]}", *known[i]) != NULL && *open > 0;
        move(l, l->at + strlen(known[i]));
        return RAVEL_OK;
    }
    return wrong(l, "a character that is no part of an expression");
}

/* Everything up to the end of the tag; `open` counts brackets, as "}}" may end two dicts. */
static ravel_status lex_tag(lexer *l, int begin, int finish, const char *end) {
    int open = 0;
    ravel_status status = push(l, begin) ? RAVEL_OK : no_memory(l);
    while (!status) {
        move(l, after_spaces(l, l->at));
        if (l->at >= l->bytes) return wrong(l, "a tag has no end");
        int32_t line = l->line;
        if (!open && take_end(l, l->at, end)) {
            jinja_token *token = push(l, finish);
            if (!token) return no_memory(l);
            token->line = line;
            return RAVEL_OK;
        }
        char c = l->text[l->at];
        status = c == '\'' || c == '"' ? lex_string(l)
                 : is_digit(c)         ? lex_number(l)
                 : is_letter(c)        ? lex_name(l)
                                       : lex_operator(l, &open);
    }
    return status;
}

/* ---- text between tags ---------------------------------------------------------------------------------- */

static ravel_status skip_comment(lexer *l) {
    for (size_t at = l->at; at + 1 < l->bytes; at++) {
        if (!starts(l, at, "#}")) continue;
        size_t sign = at > l->at && (l->text[at - 1] == '-' || l->text[at - 1] == '+');
        (void)take_end(l, at - sign, "#}");
        return RAVEL_OK;
    }
    return wrong(l, "a comment has no end");
}

static char sign_at(const lexer *l, size_t at) {
    return at < l->bytes && (l->text[at] == '-' || l->text[at] == '+') ? l->text[at] : '\0';
}

/* Whether the tag at `at` ("{%") is `word` and nothing else; *past: where its end stands. */
static int is_word_tag(const lexer *l, size_t at, const char *word, size_t *past) {
    if (!starts(l, at, "{%")) return 0;
    at += 2 + (sign_at(l, at + 2) != '\0');
    at = after_spaces(l, at);
    if (!starts(l, at, word)) return 0;
    at = *past = after_spaces(l, at + strlen(word));
    return starts(l, at, "%}") || (sign_at(l, at) && starts(l, at + 1, "%}"));
}

/* {% raw %}...{% endraw %}: the text between as it is. `at`: the end of the first tag. */
static ravel_status lex_raw(lexer *l, size_t at) {
    size_t from = at + (sign_at(l, at) != '\0') + 2, past;
    if (sign_at(l, at) == '-') from = after_spaces(l, from);
    move(l, from);
    for (size_t end = from; end < l->bytes; end++) {
        if (!is_word_tag(l, end, "endraw", &past)) continue;
        ravel_status status = push_data(l, from, trimmed(l, from, end, sign_at(l, end + 2), 0));
        (void)take_end(l, past, "%}");
        return status;
    }
    return wrong(l, "{% raw %} has no {% endraw %}");
}

static ravel_status lex_all(lexer *l) {
    ravel_status status = RAVEL_OK;
    while (!status && l->at < l->bytes) {
        size_t from = l->at, at = from, past;
        while (at < l->bytes && !(l->text[at] == '{' && at + 1 < l->bytes && strchr("{%#", l->text[at + 1]))) at++;
        if (at >= l->bytes) {
            status = push_data(l, from, at);
            move(l, at);
            break;
        }
        char kind = l->text[at + 1], sign = sign_at(l, at + 2);
        status = push_data(l, from, trimmed(l, from, at, sign, kind == '{'));
        if (status) break;
        if (kind == '%' && is_word_tag(l, at, "raw", &past)) {
            status = lex_raw(l, past);
            continue;
        }
        move(l, at + 2 + (sign != '\0'));
        if (kind == '#')
            status = skip_comment(l);
        else if (kind == '{')
            status = lex_tag(l, JINJA_T_OUTPUT, JINJA_T_OUTPUT_END, "}}");
        else
            status = lex_tag(l, JINJA_T_BLOCK, JINJA_T_BLOCK_END, "%}");
    }
    return status;
}

ravel_status ravel__jinja_lex(jinja_template *t, const char *text, size_t bytes, ravel_error *err) {
    lexer l = {.t = t, .line = 1, .begins_line = 1, .err = err};
    int seen = 0;
    if (ravel__utf8_scan(text, bytes, &seen) != bytes)
        return ravel_error_set(err, RAVEL_E_DATA, "the chat template is not valid UTF-8");
    char *copy = ravel__arena_push(&t->arena, bytes + 1, 1);
    if (!copy) return no_memory(&l);
    for (size_t i = 0; i < bytes; i++) { /* every line end becomes "\n" */
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n') continue;
        copy[l.bytes++] = text[i];
        if (text[i] == '\r') copy[l.bytes - 1] = '\n';
    }
    if (l.bytes && copy[l.bytes - 1] == '\n') l.bytes--; /* one at the end is dropped */
    copy[l.bytes] = '\0';
    l.text = copy;
    ravel_status status = lex_all(&l);
    return status || push(&l, JINJA_T_END) ? status : no_memory(&l);
}
