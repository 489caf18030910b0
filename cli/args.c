/* Flags from option tables. */
#include "cli/cli.h"

#include "train/run/config/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_wants_help(int argc, char **argv) {
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return 1;
    return 0;
}

/* Bytes of the printable UTF-8 character at s; 0 for a control character or for what is no UTF-8. */
static size_t printable(const char *s) {
    unsigned char c = (unsigned char)*s;
    size_t length = c >= 0xf0 && c < 0xf5 ? 4 : c >= 0xe0 ? 3 : c >= 0xc2 ? 2 : 1;
    RAVEL_ASSERT(length >= 1 && length <= 4);
    if (c < 0x80) return c >= ' ' && c != 0x7f;
    if (c < 0xc2 || c > 0xf4 || (c == 0xc2 && (unsigned char)s[1] < 0xa0)) return 0;
    for (size_t i = 1; i < length; i++)
        if (((unsigned char)s[i] & 0xc0) != 0x80) return 0;
    return length;
}

void cli_make_printable(char *text) {
    for (char *c = text; *c;) {
        size_t length = strncmp(c, "\n  ", 3) == 0 ? 3 : printable(c);
        if (!length) *c = '?';
        c += length ? length : 1;
    }
}

int cli_fail(const char *command, const ravel_error *err) {
    char text[sizeof err->message];
    RAVEL_ASSERT(command && err->status);
    (void)snprintf(text, sizeof text, "%s", err->message);
    cli_make_printable(text);
    (void)fprintf(stderr, "ravel %s: %s\n", command, text);
    return err->status == RAVEL_E_ARGUMENT ? CLI_USAGE : CLI_FAILED;
}

int cli_usage(const char *command, const ravel_error *err) {
    (void)cli_fail(command, err);
    return CLI_USAGE;
}

static const cli_options *find(const cli_options *sets, int count, const char *name, const ravel_option **row) {
    for (int i = 0; i < count; i++) {
        *row = ravel_option_find(sets[i].table, name);
        if (*row) return &sets[i];
    }
    return NULL;
}

static ravel_status unknown(const cli_options *sets, int set_count, const char *name, ravel_error *err) {
    const char *names[512] = {0};
    char answer[300];
    size_t count = 0;
    const ravel_option *same;
    const char *elsewhere = train_word_option(name);
    if (elsewhere && !find(sets, set_count, elsewhere, &same))
        return CLI_REFUSE(err, "unknown option --%s; other commands call it --%s; see --help", name, elsewhere);
    if (train_word_answer(name, answer, sizeof answer)) return CLI_REFUSE(err, "unknown option --%s; %s", name, answer);
    for (int i = 0; i < set_count; i++)
        for (const ravel_option *row = sets[i].table; row->name && count < 512; row++) names[count++] = row->name;
    const char *near = ravel__suggest(name, names, count);
    return CLI_REFUSE(err, "unknown option --%s%s%s%s", name, near ? "; did you mean --" : "", near ? near : "",
                      near ? "?" : "; see --help");
}

/* A flag on the command line, and its value. */
typedef struct given {
    const cli_options *set;
    const ravel_option *row;
    const char *value;
    int used; /* words */
} given;

/* Values that are never empty. */
static const char places[] = "FILE|FILES|FOLDER|RUN|MODEL|SHAPE|ADDRESS|URLS";

/* The flag at argv[i]. */
static ravel_status read_flag(char **argv, int i, int argc, const cli_options *sets, int set_count, given *f,
                              ravel_error *err) {
    char name[80];
    const char *word = argv[i] + 2, *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    if (length >= sizeof name) return CLI_REFUSE(err, "unknown option %.90s...", argv[i]);
    memcpy(name, word, length);
    name[length] = '\0';
    *f = (given){.value = equals ? equals + 1 : "true", .used = 1};
    f->set = find(sets, set_count, name, &f->row);
    if (!f->set && strncmp(name, "no-", 3) == 0 && !equals) {
        f->set = find(sets, set_count, name + 3, &f->row);
        if (f->set && f->row->type != RAVEL_OPTION_BOOL) f->set = NULL;
        f->value = "false";
    }
    if (!f->set) return unknown(sets, set_count, name, err);
    RAVEL_ASSERT(f->row && f->value && f->used == 1);
    if (!equals && f->row->type != RAVEL_OPTION_BOOL) {
        if (i + 1 >= argc) return CLI_REFUSE(err, "--%s needs a value", f->row->name);
        f->value = argv[i + 1];
        f->used = 2;
    }
    if (!f->value[0] && f->row->type == RAVEL_OPTION_STRING && ravel__choice_index(places, cli_value_word(f->row)) >= 0)
        return CLI_REFUSE(err, "--%s is empty; is it a variable that is not set?", f->row->name);
    if (strcmp(f->row->name, "budget") == 0 && strcmp(f->value, "null") == 0) f->value = "0"; /* as in a file */
    return RAVEL_OK;
}

/* Those of which cli_values takes several; and rows with cli_several as their `choices`. */
static const char repeatable[] = "stop|sweep";
const char cli_several[] = "NAME=FOLDER";

/* An option is given once: of two values one would be ignored. */
static ravel_status note_given(const ravel_option *row, const ravel_option **seen, int room, int *count,
                               ravel_error *err) {
    for (int i = 0; i < *count; i++)
        if (seen[i] == row && ravel__choice_index(repeatable, row->name) < 0 && row->choices != cli_several)
            return CLI_REFUSE(err, "--%s is given twice; leave one", row->name);
    if (*count < room) seen[(*count)++] = row;
    return RAVEL_OK;
}

ravel_status cli_parse(int argc, char **argv, const cli_options *sets, int set_count, const char **words, int max_words,
                       int *words_count, ravel_error *err) {
    enum { OPTIONS_ROOM = 256 };
    const ravel_option *seen[OPTIONS_ROOM];
    int count = 0, only_words = 0, seen_count = 0;
    RAVEL_ASSERT(argc >= 1 && set_count > 0 && max_words >= 0);
    for (int i = 1; i < argc;) {
        given f = {.used = 1};
        if (!only_words && strcmp(argv[i], "--") == 0) {
            only_words = 1;
        } else if (!only_words && strncmp(argv[i], "--", 2) == 0) {
            ravel_status status = read_flag(argv, i, argc, sets, set_count, &f, err);
            RAVEL_ASSERT(status || (f.set && f.row));
            if (!status) status = note_given(f.row, seen, OPTIONS_ROOM, &seen_count, err);
            if (!status) status = ravel_option_set(f.set->table, f.set->options, f.row->name, f.value, err);
            if (status) return status;
        } else if (!only_words && argv[i][0] == '-' && argv[i][1]) {
            return CLI_REFUSE(err, "unknown option %.40s; options begin with --", argv[i]);
        } else if (!argv[i][0]) {
            return CLI_REFUSE(err, "word %d is empty; is it a variable that is not set?", i);
        } else if (count < max_words) {
            words[count++] = argv[i];
        } else {
            return CLI_REFUSE(err, "\"%s\" is one word too many; see --help", argv[i]);
        }
        i += f.used;
    }
    RAVEL_ASSERT(count <= max_words);
    *words_count = count;
    return RAVEL_OK;
}

ravel_status cli_values(int argc, char **argv, const cli_options *sets, int set_count, const char *name,
                        const char **values, int room, int *count, ravel_error *err) {
    RAVEL_ASSERT(room > 0 && values && name);
    *count = 0;
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0;) {
        given f = {.used = 1};
        if (strncmp(argv[i], "--", 2) == 0 && read_flag(argv, i, argc, sets, set_count, &f, err)) return err->status;
        if (f.row && strcmp(f.row->name, name) == 0) {
            if (*count == room) return CLI_REFUSE(err, "--%s can be given %d times at most", name, room);
            values[(*count)++] = f.value;
        }
        i += f.used;
    }
    return RAVEL_OK;
}

enum { INDENT = 30, COLUMNS = 110 };

/* Words of the text, from column INDENT on. */
static void print_wrapped(const char *text) {
    int column = INDENT;
    while (*text) {
        int length = (int)strcspn(text, " ");
        if (column > INDENT && column + 1 + length > COLUMNS) {
            printf("\n%*s", INDENT, "");
            column = INDENT;
        } else if (column > INDENT) {
            column += printf(" ");
        }
        column += printf("%.*s", length, text);
        text += length;
        text += strspn(text, " ");
    }
    printf("\n");
}

const char *cli_value_word(const ravel_option *row) {
    switch ((ravel_option_type)row->type) {
    case RAVEL_OPTION_BOOL: return "";
    case RAVEL_OPTION_ENUM: return "WORD";
    case RAVEL_OPTION_STRING: return row->choices ? row->choices : "TEXT";
    case RAVEL_OPTION_I64: return "SIZE";
    default: return "N";
    }
}

/* The default in brackets; a switch that is on by default shows how to turn it off. */
void cli_write_preset(const ravel_option *row, char *out, size_t room) {
    char first = row->preset ? *row->preset : 0;
    *out = 0;
    if (row->type != RAVEL_OPTION_BOOL && first)
        (void)snprintf(out, room, " [%s]", row->preset);
    else if (first == 't' || first == 'y')
        (void)snprintf(out, room, " [on; --no-%s]", row->name);
}

static void print_option(const ravel_option *row) {
    char flag[96], preset[256], doc[1024];
    RAVEL_ASSERT(row->name && row->doc && strlen(row->doc) < sizeof doc - 200);
    const char *word = cli_value_word(row);
    int choices = row->type == RAVEL_OPTION_ENUM;
    cli_write_preset(row, preset, sizeof preset);
    (void)snprintf(flag, sizeof flag, "  --%s%s%s", row->name, *word ? " " : "", word);
    (void)snprintf(doc, sizeof doc, "%s%s%s%s%s", row->doc, choices ? " (" : "", choices ? row->choices : "",
                   choices ? ")" : "", preset);
    if (printf("%-*s", INDENT, flag) > INDENT) printf("\n%*s", INDENT, "");
    print_wrapped(doc);
}

ravel_option_table cli_without(ravel_option_table from, const char *names, ravel_option *rows, int room) {
    int count = 0;
    for (; from->name && count < room - 1; from++)
        if (ravel__choice_index(names, from->name) < 0) rows[count++] = *from;
    RAVEL_ASSERT(!from->name && count < room); /* all of them fit */
    memset(&rows[count], 0, sizeof rows[count]);
    return rows;
}

static void (*collect)(void *user, const char *title, const ravel_option *row);
static void *collector;

void cli_collect_options(void (*take)(void *user, const char *title, const ravel_option *row), void *user) {
    collect = take;
    collector = user;
}

void cli_print_options(const cli_options *sets, int set_count) {
    for (int i = 0; collect && i < set_count; i++)
        for (const ravel_option *row = sets[i].table; row->name; row++) collect(collector, sets[i].title, row);
    if (collect) return;
    for (int i = 0; i < set_count; i++) {
        printf("\n%s:\n", sets[i].title);
        RAVEL_ASSERT(sets[i].title && sets[i].table);
        for (const ravel_option *row = sets[i].table; row->name; row++) print_option(row);
    }
}

int cli_begin(const cli_form *form, int argc, char **argv, const char **words, int *count, int *code) {
    ravel_error err = RAVEL_ERROR_INIT;
    *code = CLI_OK;
    for (int i = 0; i < form->set_count; i++) ravel_options_default(form->sets[i].table, form->sets[i].options);
    if (cli_wants_help(argc, argv)) {
        printf("%s", form->usage);
        cli_print_options(form->sets, form->set_count);
        printf("%s", form->more ? form->more : "");
        return 0;
    }
    if (!cli_parse(argc, argv, form->sets, form->set_count, words, form->most, count, &err)) return 1;
    *code = cli_usage(form->name, &err);
    return 0;
}
