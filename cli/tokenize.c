/* ravel tokenize: text to the ids of a model, and back. */
#include "cli/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct tokenize_options {
    const char *text, *field, *chat_format, *chat_args, *out;
    int32_t rows, train_on, count, json, plain, template, decode;
    int64_t limit;
} tokenize_options;

#define ROW(...) RAVEL__ROW(tokenize_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("text", STRING, text, NULL, 0, 0, "TEXT", "this text, instead of files"),
    ROW("field", STRING, field, NULL, 0, 0, "PATH", "files are JSON lines, and this member of each is the text"),
    ROW("rows", BOOL, rows, "false", 0, 0, NULL,
        "files are JSON lines of rows as ravel train reads them: conversations, prompts and completions, texts, pairs"),
    ROW("chat-format", STRING, chat_format, NULL, 0, 0, "NAME",
        "how conversations are written, a name or a file of a template; without it, the folder's template"),
    ROW("chat-args", STRING, chat_args, NULL, 0, 0, "JSON",
        "variables of the chat template, such as {\"enable_thinking\": false}"),
    ROW("train-on", ENUM, train_on, "assistant", 0, 0, RAVEL_TRAIN_ON_CHOICES,
        "which tokens of a conversation get loss"),
    ROW("template", BOOL, template, "true", 0, 0, NULL, "bos and eos where the tokenizer puts them around a text"),
    ROW("plain", BOOL, plain, "false", 0, 0, NULL, "special tokens in the text are text like any other"),
    ROW("count", BOOL, count, "false", 0, 0, NULL, "only the number of tokens, of each text and in total"),
    ROW("json", BOOL, json, "false", 0, 0, NULL, "JSON lines: count, ids and, of rows, loss_mask"),
    ROW("decode", BOOL, decode, "false", 0, 0, NULL, "decode: --text holds ids, their text is printed"),
    ROW("limit", I64, limit, "0", 0, 1e15, NULL, "limit of lines to read per file; 0: all"),
    ROW("out", STRING, out, "-", 0, 0, "FILE", "output file; -: standard output"),
    {0}};

static int help(void) {
    tokenize_options o;
    ravel_options_default(table, &o);
    const cli_options sets[] = {{"Options", table, &o}};
    printf("usage: ravel tokenize FOLDER [FILE ...] [options]\n\n"
           "Prints the token ids of texts, one line per text, as the model folder's tokenizer makes them. A file\n"
           "is one text; - is standard input, also if no file is given.\n");
    cli_print_options(sets, 1);
    printf("\nChat formats (--chat-format):\n ");
    for (int32_t i = 0; ravel_chat_format_at(i); i++) printf(" %s", ravel_chat_format_at(i));
    printf("\n\nExamples:\n"
           "  ravel tokenize models/SmolLM2 --text 'Hello, world!'\n"
           "  ravel tokenize models/SmolLM2 README.md --count\n"
           "  ravel tokenize models/SmolLM2 chat.jsonl --rows --json\n"
           "  ravel tokenize models/SmolLM2 data.jsonl --field text --count\n"
           "  ravel tokenize models/SmolLM2 --decode --text '19556 28 905 17'\n"
           "\nExit codes: 0 done, 1 the data is wrong, 2 the command line is wrong. See also ravel-tokenize(1).\n");
    return CLI_OK;
}

/* ---- printing ------------------------------------------------------------------------------------------- */

typedef struct printing {
    const tokenize_options *o;
    cli_output output;
    int64_t texts, tokens, learnt;
} printing;

static ravel_status put(printing *p, const char *text, ravel_error *err) {
    return cli_output_write(&p->output, text, strlen(text), err);
}

/* ids[count], or mask[count] if there are no ids. */
static ravel_status put_list(printing *p, const char *before, const char *between, const int32_t *ids,
                             const uint8_t *mask, int64_t count, ravel_error *err) {
    char number[32];
    ravel_status status = put(p, before, err);
    for (int64_t i = 0; (ids || mask) && i < count && !status; i++) {
        (void)snprintf(number, sizeof number, "%s%d", i ? between : "", ids ? ids[i] : mask[i]);
        status = put(p, number, err);
    }
    return status;
}

static ravel_status print_text(void *user, const int32_t *ids, const uint8_t *mask, int64_t count, ravel_error *err) {
    printing *p = user;
    char head[64];
    RAVEL_ASSERT(count >= 0 && (ids || count == 0));
    p->texts++;
    p->tokens += count;
    for (int64_t i = 0; mask && i < count; i++) p->learnt += mask[i];
    if (p->o->json) {
        (void)snprintf(head, sizeof head, "{\"count\": %lld", (long long)count);
        ravel_status status = put(p, head, err);
        if (!status && !p->o->count) status = put_list(p, ", \"ids\": [", ", ", ids, NULL, count, err);
        if (!status && !p->o->count && mask) status = put_list(p, "], \"loss_mask\": [", ", ", NULL, mask, count, err);
        return status ? status : put(p, p->o->count ? "}\n" : "]}\n", err);
    }
    if (p->o->count) {
        (void)snprintf(head, sizeof head, "%lld\n", (long long)count);
        return put(p, head, err);
    }
    ravel_status status = put_list(p, "", " ", ids, NULL, count, err);
    return status ? status : put(p, "\n", err);
}

static void print_totals(const printing *p) {
    if (!p->o->count || p->o->json) return;
    (void)fprintf(stderr, "%s tokens in %s texts", ravel__thousands(p->tokens).text, ravel__thousands(p->texts).text);
    if (p->o->rows) (void)fprintf(stderr, ", %s with loss", ravel__thousands(p->learnt).text);
    (void)fprintf(stderr, "\n");
}

/* ---- the other way -------------------------------------------------------------------------------------- */

static ravel_status parse_ids(const char *text, int32_t *ids, int64_t *count, ravel_error *err) {
    *count = 0;
    for (const char *at = text + strspn(text, " ,\t\n"); *at; at += strspn(at, " ,\t\n")) {
        char *end;
        long long id = strtoll(at, &end, 10);
        if (end == at || id < 0 || id > INT32_MAX) return CLI_REFUSE(err, "\"%.20s\" is not a token id", at);
        RAVEL_ASSERT(*count < (int64_t)strlen(text) / 2 + 1);
        ids[(*count)++] = (int32_t)id;
        at = end;
    }
    return RAVEL_OK;
}

static ravel_status decode(const text_reader *reader, const tokenize_options *o, printing *p, ravel_error *err) {
    const ravel_tokenizer *t = text_tokenizer(reader);
    int64_t count = 0;
    size_t used;
    if (!o->text) return CLI_REFUSE(err, "--decode needs ids in --text");
    int32_t *ids = malloc((strlen(o->text) / 2 + 1) * sizeof *ids);
    if (!ids) return ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    ravel_status status = parse_ids(o->text, ids, &count, err);
    for (int64_t i = 0; i < count && !status; i++)
        if (!ravel_tokenizer_bytes(t, ids[i], &used))
            status = CLI_REFUSE(err, "%d is not a token of this model, which has ids up to %d", ids[i],
                                ravel_tokenizer_size(t) - 1);
    size_t bytes = status ? 0 : ravel_tokenizer_decode(t, ids, count, 0, NULL, 0);
    char *text = malloc(bytes + 2);
    if (!text) {
        status = ravel_error_set(err, RAVEL_E_MEMORY, "out of memory");
    } else if (!status) {
        (void)ravel_tokenizer_decode(t, ids, count, 0, text, bytes + 1);
        text[bytes] = '\n';
        status = cli_output_write(&p->output, text, bytes + 1, err);
    }
    free(text);
    free(ids);
    return status;
}

/* ---- the command ---------------------------------------------------------------------------------------- */

static ravel_status run(text_reader *reader, const tokenize_options *o, const char **files, int count, printing *p,
                        ravel_error *err) {
    static const char *const standard[] = {"-"};
    ravel_status status = RAVEL_OK;
    if (o->decode) return decode(reader, o, p, err);
    if (o->text) return text_read(reader, o->text, strlen(o->text), print_text, p, err);
    if (count == 0) files = (const char **)standard, count = 1;
    for (int i = 0; i < count && !status; i++) status = text_read_file(reader, files[i], print_text, p, err);
    return status;
}

static ravel_status check(const tokenize_options *o, int files, ravel_error *err) {
    if (o->text && (files || o->rows || o->field))
        return CLI_REFUSE(err, "--text is instead of files, --rows and --field");
    if (o->rows && o->field) return CLI_REFUSE(err, "give --rows or --field, not both");
    if ((o->chat_format || o->chat_args) && !o->rows)
        return CLI_REFUSE(err, "--chat-format and --chat-args are for --rows");
    if (o->train_on && !o->rows) return CLI_REFUSE(err, "--train-on is for --rows");
    if (o->rows && (o->plain || !o->template))
        return CLI_REFUSE(err, "--plain and --no-template are for texts, not for --rows");
    if (o->limit && !o->rows && !o->field) return CLI_REFUSE(err, "--limit counts lines: it is for --rows and --field");
    if (o->decode && (o->count || o->json || o->plain || !o->template))
        return CLI_REFUSE(err, "--decode prints a text: leave out --count, --json, --plain and --no-template");
    return RAVEL_OK;
}

/* words: the model folder, and the files. */
static ravel_status claim_files(const char *const *words, int count, const char *out, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    for (int i = 0; i < count && !status; i++) status = cli_claim_input(i ? "file" : "folder", words[i], err);
    return status ? status : cli_claim_output("out", out, err);
}

int cli_tokenize(int argc, char **argv) {
    enum { FILES = 1024 };
    const char *words[FILES];
    int count = 0;
    tokenize_options o;
    printing p = {&o, {0}, 0, 0, 0};
    text_reader *reader = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_options_default(table, &o);
    if (cli_wants_help(argc, argv)) return help();
    const cli_options sets[] = {{"Options", table, &o}};
    ravel_status status = cli_parse(argc, argv, sets, 1, words, FILES, &count, &err);
    if (!status && count == 0)
        status = CLI_REFUSE(
            &err, "name a model folder or a tokenizer.json (or tokenizer.model, tekken.json, *.tiktoken); see --help");
    if (!status) status = check(&o, count - 1, &err);
    if (!status) status = claim_files(words, count, o.out, &err);
    if (status) return cli_usage("tokenize", &err);
    const text_options options = {words[0],
                                  o.field,
                                  o.chat_format,
                                  o.chat_args,
                                  o.rows,
                                  o.train_on,
                                  (o.template ? RAVEL_ENCODE_TEMPLATE : 0) | (o.plain ? RAVEL_ENCODE_PLAIN : 0),
                                  o.limit};
    status = text_open(&options, &reader, &err);
    if (!status) status = cli_output_open(&p.output, o.out, &err);
    if (!status) status = cli_output_close(&p.output, run(reader, &o, words + 1, count - 1, &p, &err), &err);
    text_close(reader);
    if (status) return cli_fail("tokenize", &err);
    print_totals(&p);
    return CLI_OK;
}
