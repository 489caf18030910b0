/* Chat formats against transformers' texts, and every form of a row. */
#include "tests/unit/check.h"

#include "base/json.h"
#include "text/decoder.h"
#include "text/chat.h"

#include <stdlib.h>

#define CASES "tests/golden/chat/cases.jsonl"

/* Bytes as tokens, and the special tokens of all formats; no regular expression, so it needs no PCRE2. */
static ravel_tokenizer *make_tokenizer(const char *more) {
    static const char *const specials[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|eot_id|>"};
    static char json[32768], config[512];
    size_t used = (size_t)snprintf(json, sizeof json, "{\"added_tokens\":[");
    for (int i = 0; i < 5; i++)
        used += (size_t)snprintf(json + used, sizeof json - used,
                                 "%s{\"id\":%d,\"content\":\"%s\",\"special\":true,\"normalized\":false}", i ? "," : "",
                                 256 + i, specials[i]);
    used +=
        (size_t)snprintf(json + used, sizeof json - used,
                         "],\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false},"
                         "\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int byte = 0, next = 256; byte < 256; byte++) {
        int printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
        used += (size_t)snprintf(json + used, sizeof json - used, "%s\"\\u%04x\":%d", byte ? "," : "",
                                 printable ? byte : next++, byte);
    }
    used += (size_t)snprintf(json + used, sizeof json - used, "}}}");
    int length = snprintf(config, sizeof config, "{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"%s}", more);
    ravel_tokenizer *t = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (ravel__tokenizer_parse(json, used, config, (size_t)length, NULL, &t, &err))
        check_fail(__FILE__, __LINE__, "%s", err.message);
    return t;
}

/* Opened once, and kept. */
static const ravel_chat_format *format_named(const char *name) {
    static ravel_chat_format *open[64];
    int32_t i = 0;
    while (ravel_chat_format_at(i) && strcmp(ravel_chat_format_at(i), name) != 0) i++;
    ravel_error err = RAVEL_ERROR_INIT;
    if (i < 64 && !open[i] && ravel_chat_format_open(name, NULL, &open[i], &err))
        check_fail(__FILE__, __LINE__, "%s: %s", name, err.message);
    return open[i];
}

static ravel_rows *make_rows(const ravel_tokenizer *t, const char *format, int train_on) {
    ravel_rows_options options;
    ravel_rows *rows = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_rows_options_default(&options);
    options.tokenizer = t;
    options.format = format ? format_named(format) : NULL;
    options.train_on = train_on;
    if (ravel_rows_create(&options, &rows, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return rows;
}

/* ---- formats -------------------------------------------------------------------------------------------- */

static bool check_case(const ravel_tokenizer *t, const ravel__json *doc) {
    const ravel__json_node *root = ravel__json_root(doc), *want = ravel__json_get(doc, root, "text");
    const char *name = ravel__json_get(doc, root, "format")->as.string, *text = NULL;
    size_t bytes = 0;
    int answer = 0;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_rows *rows = make_rows(t, name, 0);
    if (!rows) return false;
    (void)ravel__json_boolean(ravel__json_get(doc, root, "answer"), &answer);
    ravel_status status =
        ravel__rows_render(rows, doc, ravel__json_get(doc, root, "messages"), answer, &text, &bytes, &err);
    bool good = want->kind == RAVEL__JSON_STRING
                    ? status == RAVEL_OK && bytes == want->bytes && memcmp(text, want->as.string, bytes) == 0
                    : status == RAVEL_E_DATA;
    if (!good)
        check_fail(__FILE__, __LINE__, "%s: \"%s\" instead of \"%s\"", name, status ? err.message : text,
                   want->kind == RAVEL__JSON_STRING ? want->as.string : "an error");
    ravel_rows_free(rows);
    return good;
}

TEST(chat_formats_equal_transformers) {
    FILE *file = fopen(CASES, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    int cases = 0;
    ravel__json *doc = NULL;
    ravel_tokenizer *t = make_tokenizer("");
    CHECK(file && t);
    while ((bytes = getline(&line, &room, file)) > 0 && ++cases) {
        if (!EXPECT(ravel__json_parse(line, (size_t)bytes, NULL, &doc, NULL) == RAVEL_OK) || !check_case(t, doc)) break;
    }
    CHECK(cases > 500);
    free(line);
    (void)fclose(file);
    ravel__json_free(doc);
    ravel_tokenizer_free(t);
}

TEST(chat_format_is_the_folders_template) {
    const ravel_chat_format *format = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_tokenizer *t = make_tokenizer(",\"chat_template\":\"{{ messages[0].content }}{{ eos_token }}\"");
    CHECK(t);
    CHECK_OK(ravel_chat_format_of(t, &format, &err), &err);
    ravel_tokenizer_free(t);
    t = make_tokenizer(",\"chat_template\":\"a\\n{% import 'x' %}\"");
    CHECK_EQ(ravel_chat_format_of(t, &format, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "line 2: there is no statement import");
    ravel_tokenizer_free(t);
    ravel_error_clear(&err);
    t = make_tokenizer("");
    CHECK_EQ(ravel_chat_format_of(t, &format, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "no chat template");
    ravel_tokenizer_free(t);
}

TEST(chat_formats_have_names_of_their_own) {
    int32_t count = 0;
    ravel_chat_format *format = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    for (const char *name; (name = ravel_chat_format_at(count)); count++)
        CHECK_STR(ravel_chat_format_name(format_named(name)), name);
    CHECK(count >= 10);
    CHECK_EQ(ravel_chat_format_open("no such", NULL, &format, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "chatml, ");
}

/* ---- rows ----------------------------------------------------------------------------------------------- */

/* Tokens as text, the learnt ones inside [ ]. */
static void show(const ravel_tokenizer *t, const ravel_row_part *part, char *out, size_t room) {
    size_t used = 0, bytes;
    int inside = 0;
    for (int64_t i = 0; i < part->count && used + 64 < room; i++) {
        if (part->loss_mask[i] != inside) out[used++] = (inside = part->loss_mask[i]) ? '[' : ']';
        const char *text = ravel_tokenizer_bytes(t, part->tokens[i], &bytes);
        memcpy(out + used, text, bytes);
        used += bytes;
    }
    if (inside) out[used++] = ']';
    out[used] = '\0';
}

typedef struct row_case {
    const char *json, *first, *second; /* second: of a pair; "" in first: refused, and second is what it says */
    int train_on, status;
} row_case;

static void check_rows(const char *format, const row_case *cases, size_t count) {
    ravel_tokenizer *t = make_tokenizer("");
    ravel__json *doc = NULL;
    for (size_t i = 0; i < count; i++) {
        ravel_rows *rows = make_rows(t, format, cases[i].train_on);
        const ravel_row *row = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        char text[1024];
        CHECK_OK(ravel__json_parse(cases[i].json, strlen(cases[i].json), NULL, &doc, &err), &err);
        CHECK_EQ(ravel__rows_encode(rows, doc, ravel__json_root(doc), &row, &err), cases[i].status);
        if (cases[i].status) {
            CHECK_HAS(err.message, cases[i].second);
        } else {
            show(t, &row->parts[0], text, sizeof text);
            CHECK_STR(text, cases[i].first);
            CHECK_EQ(row->pair, cases[i].second != NULL);
            if (row->pair) show(t, &row->parts[1], text, sizeof text);
            if (row->pair) CHECK_STR(text, cases[i].second);
        }
        ravel_rows_free(rows);
    }
    ravel__json_free(doc);
    ravel_tokenizer_free(t);
}

#define CHECK_ROWS(format, cases) check_rows(format, cases, sizeof cases / sizeof *cases)
#define USER(text)                "<|im_start|>user\n" text "<|im_end|>\n"
#define ANSWER(text)              "<|im_start|>assistant\n[" text "<|im_end|>]\n"

TEST(chat_rows_of_every_form_and_what_is_learnt) {
    static const row_case cases[] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
         USER("a") ANSWER("b"), NULL, 0, 0},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":"
         "\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}",
         USER("a") ANSWER("b") USER("c") ANSWER("d"), NULL, 0, 0},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":"
         "\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}",
         USER("a") "<|im_start|>assistant\nb<|im_end|>\n" USER("c") ANSWER("d"), NULL, RAVEL_TRAIN_ON_LAST, 0},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}", "[" USER("a") "]", NULL, RAVEL_TRAIN_ON_ALL, 0},
        {"{\"conversations\":[{\"from\":\"human\",\"value\":\"a\"},{\"from\":\"gpt\",\"value\":\"b\"}]}",
         USER("a") ANSWER("b"), NULL, 0, 0},
        {"{\"prompt\":\"ab\",\"completion\":\"cd\"}", "ab[cd</s>]", NULL, 0, 0},
        {"{\"prompt\":\"\",\"response\":\"cd</s>\"}", "[cd</s>]", NULL, 0, 0},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":"
         "\"user\",\"content\":\"c\"}],\"completion\":[{\"role\":\"assistant\",\"content\":\"d\"}]}",
         USER("a") "<|im_start|>assistant\nb<|im_end|>\n" USER("c") ANSWER("d"), NULL, 0, 0},
        {"{\"prompt\":\"a\",\"completion\":[{\"role\":\"assistant\",\"content\":\"d\"}]}", USER("a") ANSWER("d"), NULL,
         0, 0},
        {"{\"instruction\":\"do\",\"input\":\"it\",\"output\":\"done\"}", USER("do\n\nit") ANSWER("done"), NULL, 0, 0},
        {"{\"instruction\":\"do\",\"input\":\"\",\"output\":\"done\"}", USER("do") ANSWER("done"), NULL, 0, 0},
        {"{\"text\":\"abc\"}", "[abc</s>]", NULL, 0, 0},
        {"{\"input_ids\":[97,98,99]}", "[abc]", NULL, 0, 0},
        {"{\"input_ids\":[97,98,99],\"loss_mask\":[0,1,0]}", "a[b]c", NULL, 0, 0},
        {"{\"input_ids\":[97,98,99],\"labels\":[-100,-100,99]}", "ab[c]", NULL, 0, 0},
        {"{\"prompt\":\"p\",\"chosen\":\"yes\",\"rejected\":\"no\"}", "p[yes</s>]", "p[no</s>]", 0, 0},
        {"{\"chosen\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"y\"}],\"rejected\":"
         "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"n\"}],\"prompt\":\"q\"}",
         USER("q") ANSWER("y"), USER("q") ANSWER("n"), 0, 0},
        {"{\"chosen\":[{\"role\":\"assistant\",\"content\":\"y\"}],\"rejected\":[{\"from\":\"gpt\",\"value\":\"n\"}],"
         "\"prompt\":\"q\"}",
         USER("q") ANSWER("y"), USER("q") ANSWER("n"), 0, 0},
        {"{\"input_ids\":[97,98,99],\"prompt_length\":2}", "ab[c]", NULL, 0, 0},
    };
    CHECK_ROWS("chatml", cases);
}

/* Answers by a template of the folder, over a conversation with thoughts, a call of a tool and an empty answer; and what the
 * template puts before the first of them. */
static void check_answers(const char *template, const char *json, const char *want, const char *inserted) {
    char config[1024], text[1024];
    ravel_rows_options options;
    ravel_rows *rows = NULL;
    ravel__json *doc = NULL;
    const ravel_row *row;
    ravel_error err = RAVEL_ERROR_INIT;
    (void)snprintf(config, sizeof config, ",\"chat_template\":\"%s\"", template);
    ravel_tokenizer *t = make_tokenizer(config);
    ravel_rows_options_default(&options);
    options.tokenizer = t;
    options.variables = "{\"mark\": \"M\"}";
    CHECK_OK(ravel_chat_format_of(t, &options.format, &err), &err);
    CHECK_OK(ravel_rows_create(&options, &rows, &err), &err);
    CHECK_OK(ravel__json_parse(json, strlen(json), NULL, &doc, &err), &err);
    CHECK_OK(ravel__rows_encode(rows, doc, ravel__json_root(doc), &row, &err), &err);
    show(t, &row->parts[0], text, sizeof text);
    CHECK_STR(text, want);
    CHECK_EQ(row->inserted, inserted[0] != '\0');
    CHECK_STR(row->inserted_text, inserted);
    ravel__json_free(doc);
    ravel_rows_free(rows);
    ravel_tokenizer_free(t);
}

#define TALK(more) "{\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\"," more

TEST(chat_answers_are_found_in_any_template) {
    /* thoughts that the template writes are the answer's; what asks for an answer is not */
    check_answers(
        "{% for m in messages %}<s>{{ m.role }}:{% if m.role == 'assistant' %}<t>{{ m.reasoning_content }}</t>{% endif %}"
        "{{ m.content }}</s>~{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}",
        TALK("\"content\":\"a\",\"reasoning_content\":\"r\"},{\"role\":\"user\",\"content\":\"assistant:\"}]}"),
        "<s>user:q</s>~<s>assistant:[<t>r</t>a</s>]~<s>user:assistant:</s>~", "<t>");
    /* the prompt opens the thought: only what is written after it is learnt */
    check_answers("{% for m in messages %}{{ '<U>' if m.role == 'user' else '<A><t>' }}{{ m.content }}</s>{% endfor %}"
                  "{% if add_generation_prompt %}<A><t>{% endif %}",
                  TALK("\"content\":\"a\"}]}"), "<U>q</s><A><t>[a</s>]", "");
    /* calls of tools are the answer's, their results are not */
    check_answers(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}CALL "
        "{{ c.function|tojson }}END{% endfor %}</s>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
        TALK("\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\"}}]},{\"role\":\"tool\",\"content\":\"7\"},"
             "{\"role\":\"assistant\",\"content\":\"b\"}]}"),
        "<user>q</s><assistant>[CALL {\"name\": \"f\"}END</s>]<tool>7</s><assistant>[b</s>]", "CALL ");
    /* the template's own marks count, and variables reach it */
    check_answers(
        "{{ mark }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}!{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}",
        TALK("\"content\":\"a\"}]}"), "Mq[a!]", "");
    /* thoughts that no message has: between marks, and found by provenance */
    check_answers(
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<t>\\n</t>{{ m.content }}{% endgeneration %}"
        "{% else %}{{ m.content }}{% endif %}{% endfor %}",
        TALK("\"content\":\"a\"}]}"), "q[<t>\n</t>a]", "<t>\n</t>");
    check_answers(
        "{% for m in messages %}<{{ m.role }}>{{ '<t></t>' if m.role == 'assistant' }}{{ m.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}",
        TALK("\"content\":\"a\"}]}"), "<user>q</s><assistant>[<t></t>a</s>]", "<t></t>");
    /* a template that refuses to ask, and cuts what it writes */
    check_answers("{% if add_generation_prompt %}{{ raise_exception('no') }}{% endif %}{% for m in messages %}"
                  "{{ m.role[:1] ~ m.content.strip() ~ '</s>' }}{% endfor %}",
                  TALK("\"content\":\"  a  \"}]}"), "uq</s>a[a</s>]", "");
}

TEST(chat_rows_that_are_refused_say_why) {
    static const row_case cases[] = {
        {"{\"foo\":1,\"bar\":2}", "", "\"foo\", \"bar\"", 0, RAVEL_E_DATA},
        {"{}", "", "no keys", 0, RAVEL_E_DATA},
        {"[1]", "", "JSON object", 0, RAVEL_E_DATA},
        {"{\"messages\":[]}", "", "at least one", 0, RAVEL_E_DATA},
        {"{\"messages\":[7]}", "", "\"messages\"[0]", 0, RAVEL_E_DATA},
        {"{\"messages\":[{\"role\":\"user\"}]}", "", "content", 0, RAVEL_E_DATA},
        {"{\"messages\":[{\"content\":\"x\"}]}", "", "no role", 0, RAVEL_E_DATA},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"tools\":7}", "", "tools", 0, RAVEL_E_DATA},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "", "no answer", 0, RAVEL_E_DATA},
        {"{\"prompt\":1,\"completion\":2}", "", "two texts", 0, RAVEL_E_DATA},
        {"{\"input_ids\":[1,-2]}", "", "\"input_ids\"[1]", 0, RAVEL_E_DATA},
        {"{\"input_ids\":[1],\"loss_mask\":[2]}", "", "0 or 1", 0, RAVEL_E_DATA},
        {"{\"input_ids\":[1],\"labels\":[2]}", "", "-100", 0, RAVEL_E_DATA},
        {"{\"input_ids\":[1],\"prompt_length\":2}", "", "from 0 to 1", 0, RAVEL_E_DATA},
        {"{\"input_ids\":[1],\"labels\":[1],\"loss_mask\":[1]}", "", "not several", 0, RAVEL_E_DATA},
        {"{\"input_ids\":[1,2],\"cu_seqlens\":[0,1,2]}", "", "cu_seqlens", 0, RAVEL_E_UNSUPPORTED},
        {"{\"chosen\":1,\"rejected\":\"x\"}", "", "\"chosen\"", 0, RAVEL_E_DATA},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"q\"}],\"chosen\":\"y\",\"rejected\":\"n\"}", "", "\"prompt\"",
         0, RAVEL_E_DATA},
        {"{\"instruction\":1,\"output\":\"x\"}", "", "\"instruction\"", 0, RAVEL_E_DATA},
        {"{\"text\":5}", "", "\"text\"", 0, RAVEL_E_DATA},
    };
    static const row_case plain[] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", "", "no chat template", 0, RAVEL_E_UNSUPPORTED},
        {"{\"text\":\"abc\"}", "[abc</s>]", NULL, 0, 0},
    };
    CHECK_ROWS("chatml", cases);
    CHECK_ROWS(NULL, plain);
}

TEST(chat_prompts_begin_an_answer) {
    static const char *const cases[][2] = {
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"}]}",
         USER("a") "<|im_start|>assistant\n"},
        {"{\"prompt\":\"2+2\",\"answer\":\"4\"}", USER("2+2") "<|im_start|>assistant\n"},
        {"{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}]}", USER("a") "<|im_start|>assistant\n"}};
    ravel_tokenizer *t = make_tokenizer("");
    ravel_rows *rows = make_rows(t, "chatml", 0);
    ravel__json *doc = NULL;
    char text[512];
    for (int i = 0; i < 3; i++) {
        const ravel_row *row;
        CHECK(ravel__json_parse(cases[i][0], strlen(cases[i][0]), NULL, &doc, NULL) == RAVEL_OK);
        CHECK(ravel__rows_prompt(rows, doc, ravel__json_root(doc), &row, NULL) == RAVEL_OK);
        show(t, &row->parts[0], text, sizeof text);
        CHECK_STR(text, cases[i][1]);
    }
    ravel_rows_free(rows);
    ravel__json_free(doc);
    ravel_tokenizer_free(t);
}

static ravel_status encode_with(const ravel_allocator *allocator, void *user) {
    static const char json[] = "{\"instruction\":\"do\",\"input\":\"it\",\"output\":\"done\"}";
    ravel_rows_options options;
    ravel_rows *rows = NULL;
    ravel__json *doc = NULL;
    const ravel_row *row;
    ravel_rows_options_default(&options);
    options.tokenizer = user;
    options.format = format_named("qwen3");
    options.allocator = allocator;
    ravel_status status = ravel_rows_create(&options, &rows, NULL);
    if (!status) status = ravel__json_parse(json, sizeof json - 1, allocator, &doc, NULL);
    if (!status) status = ravel__rows_encode(rows, doc, ravel__json_root(doc), &row, NULL);
    ravel__json_free(doc);
    ravel_rows_free(rows);
    return status;
}

TEST(chat_rows_every_allocation_may_fail) {
    ravel_tokenizer *t = make_tokenizer("");
    CHECK(check_every_allocation(encode_with, t) > 5);
    ravel_tokenizer_free(t);
}
