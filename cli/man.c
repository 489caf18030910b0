/* The OPTIONS sections of docs/man, from the option tables: `ravel completion man`, which mk/man.sh puts into the
 * pages.
 *
 *     .\" page train
 *     .Ss Run
 *     .Bl -tag -width Ds
 *     .It Fl -run Ar text
 *     Folder of the run; ...
 *     .El
 *
 * The kinds of ravel train have most rows in common: those of all kinds come first, then those of one or two. */
#include "cli/cli.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 512, ALL = 7 };
static const char *const kinds[] = {"sft", "dpo", "grpo"};

typedef struct entry {
    const char *title;
    ravel_option row;
    int kinds; /* bits */
} entry;

typedef struct page {
    entry entries[ROWS];
    int count, kind;
} page;

static void take(void *user, const char *title, const ravel_option *row) {
    page *p = user;
    for (int i = 0; i < p->count; i++) {
        entry *e = &p->entries[i];
        if (strcmp(e->row.name, row->name) != 0 || strcmp(e->row.doc, row->doc) != 0 || strcmp(e->title, title) != 0)
            continue;
        e->kinds |= 1 << p->kind;
        return;
    }
    RAVEL_ASSERT(p->count < ROWS);
    p->entries[p->count++] = (entry){title, *row, 1 << p->kind};
}

static void put_char(ravel__printer *f, int c) {
    ravel__printer_put(f, &(char){(char)c}, 1);
}

/* A sentence, a line per sentence; what a line must not begin with is escaped. */
static void put_text(ravel__printer *f, const char *text) {
    int begins = 1;
    for (const char *c = text; *c; c++) {
        if (begins && (*c == '.' || *c == '\'')) ravel__printer_string(f, "\\&");
        if (*c == '\\')
            ravel__printer_string(f, "\\e");
        else if (c == text)
            put_char(f, toupper((unsigned char)*c));
        else
            put_char(f, *c);
        begins = 0;
        if (c[0] == '.' && c[1] == ' ' && isupper((unsigned char)c[2])) {
            ravel__printer_string(f, "\n");
            c++;
            begins = 1;
        }
    }
}

static void put_word(ravel__printer *f, const char *word) {
    for (; *word; word++) put_char(f, tolower((unsigned char)*word));
}

static void put_row(ravel__printer *f, const ravel_option *row) {
    char preset[256];
    const char *word = cli_value_word(row);
    ravel__printer_format(f, ".It Fl -%s", row->name);
    if (row->type == RAVEL_OPTION_ENUM) {
        for (const char *c = row->choices; *c; c += strcspn(c, "|"), c += *c == '|')
            ravel__printer_format(f, "%s%.*s", c == row->choices ? " Cm " : " | ", (int)strcspn(c, "|"), c);
    } else if (*word) {
        ravel__printer_string(f, " Ar ");
        put_word(f, word);
    }
    ravel__printer_string(f, "\n");
    put_text(f, row->doc);
    cli_write_preset(row, preset, sizeof preset);
    ravel__printer_format(f, "%s.\n", preset);
}

/* "Run", or with kinds "Data (sft, dpo)"; none for a command with one table. */
static void put_heading(ravel__printer *f, const entry *e, int several) {
    int used = 0;
    const char *note = strstr(e->title, " (a "); /* what --help says beside a title */
    int length = note ? (int)(note - e->title) : (int)strlen(e->title);
    if (strcmp(e->title, "Options") != 0) {
        ravel__printer_format(f, ".Ss %c%.*s", toupper((unsigned char)e->title[0]), length - 1, e->title + 1);
        for (int k = 0; several && e->kinds != ALL && k < 3; k++)
            if (e->kinds >> k & 1) ravel__printer_format(f, "%s%s", used++ ? ", " : " (", kinds[k]);
        ravel__printer_string(f, used ? ")\n" : "\n");
    }
    ravel__printer_string(f, ".Bl -tag -width Ds\n");
}

static void put_rows(ravel__printer *f, const page *p, int which, int several) {
    const entry *before = NULL;
    for (int i = 0; i < p->count; i++) {
        const entry *e = &p->entries[i];
        if (e->kinds != which) continue;
        if (before && strcmp(before->title, e->title) != 0) ravel__printer_string(f, ".El\n");
        if (!before || strcmp(before->title, e->title) != 0) put_heading(f, e, several);
        put_row(f, &e->row);
        before = e;
    }
    if (before) ravel__printer_string(f, ".El\n");
}

void cli_print_man(ravel__printer *f) {
    static page p;
    for (int i = 0; cli_command_at(i); i++) {
        const cli_command *command = cli_command_at(i);
        int several = strcmp(command->name, "train") == 0;
        p.count = 0;
        for (p.kind = 0; p.kind < (several ? 3 : 1); p.kind++)
            cli_ask_options(command, several ? kinds[p.kind] : NULL, take, &p);
        ravel__printer_format(f, ".\\\" page %s\n", command->name);
        if (!several) put_rows(f, &p, 1, 0);
        for (int which = ALL; several && which > 0; which--) put_rows(f, &p, which, 1);
    }
}
