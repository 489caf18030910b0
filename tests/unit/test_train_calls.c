/* Calls of tools: found in answers of every form, whichever way an answer is cut into pieces; the rest is text. */
#include "tests/unit/check.h"

#include "base/rng.h"
#include "train/rl/calls.h"

#include <stdlib.h>
#include <unistd.h>

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": "
    "{\"n\": {\"type\": \"integer\"}, \"s\": {\"type\": \"string\"}, \"l\": {\"type\": \"array\"}}}}}]";

typedef struct found {
    char text[1024]; /* what is left, then "|name arguments" per call */
} found;

static found collect(const train_calls *c) {
    found f = {{0}};
    size_t used = (size_t)snprintf(f.text, sizeof f.text, "%.*s", (int)c->text.used, c->text.data ? c->text.data : "");
    for (int64_t i = 0; i < c->count; i++) {
        const train_call *x = &c->all[i];
        used += (size_t)snprintf(f.text + used, sizeof f.text - used, "|%.*s %.*s", (int)x->name_bytes,
                                 c->parts.data + x->name, (int)x->arguments_bytes, c->parts.data + x->arguments);
    }
    return f;
}

/* rng NULL: in one piece. What was shown stays. */
static found read_as(train_calls_form form, const char *answer, int64_t most, ravel__rng *rng) {
    ravel__json *doc = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    (void)EXPECT(ravel__json_parse(tools, strlen(tools), NULL, &doc, &err) == RAVEL_OK);
    const train_calls_options options = {form, most, doc, ravel__json_root(doc)};
    train_calls c = {0};
    size_t bytes = strlen(answer);
    for (size_t at = 0; rng && at < bytes;) {
        size_t shown = c.text.used;
        char *before = strndup(c.text.data ? c.text.data : "", shown), *so_far;
        at += 1 + (size_t)ravel__rng_below(rng, 5);
        if (at > bytes) at = bytes;
        so_far = strndup(answer, at); /* its end is the end of what is known */
        train_calls_read(&c, &options, so_far, at, 0);
        (void)EXPECT(c.text.used >= shown && (!shown || memcmp(c.text.data, before, shown) == 0));
        free(before);
        free(so_far);
    }
    train_calls_read(&c, &options, answer, bytes, 1);
    (void)EXPECT(c.at == bytes && !c.text.failed);
    found f = collect(&c);
    train_calls_free(&c);
    ravel__json_free(doc);
    return f;
}

TEST(calls_of_tools_are_found_in_any_pieces) {
    static const struct {
        train_calls_form form;
        const char *answer, *want;
    } cases[] = {
        {TRAIN_CALLS_TAGGED, "", ""},
        {TRAIN_CALLS_TAGGED, "no calls at all\n", "no calls at all\n"},
        {TRAIN_CALLS_TAGGED, "a < b <tool_", "a < b <tool_"},
        {TRAIN_CALLS_TAGGED,
         "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 1, \"s\": \"}\\\"{\"}}\n</tool_call>",
         "|f {\"n\": 1, \"s\": \"}\\\"{\"}"},
        {TRAIN_CALLS_TAGGED,
         "I look.\n\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
         "<tool_call>{\"name\": \"g\", \"arguments\": {\"x\": [1.5, null, true]}}</tool_call>\n",
         "I look.|f {}|g {\"x\": [1.5, null, true]}"},
        {TRAIN_CALLS_TAGGED, "x <tool_call>{\"name\": \"f\"}</tool_call> y",
         "x <tool_call>{\"name\": \"f\"}</tool_call> y"},
        {TRAIN_CALLS_TAGGED, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\": 2}}", "|f {\"n\": 2}"},
        {TRAIN_CALLS_TAGGED, "<tool_call>{\"name\": \"f\", \"argu", "<tool_call>{\"name\": \"f\", \"argu"},
        {TRAIN_CALLS_TAGGED,
         "<tool_call>\n<function=f>\n<parameter=n>\n12\n</parameter>\n<parameter=s>\n12\n</parameter>\n<parameter=l>\n"
         "[1, 2]\n</parameter>\n<parameter=other>\ntwo\nlines\n</parameter>\n</function>\n</tool_call>",
         "|f {\"n\": 12, \"s\": \"12\", \"l\": [1, 2], \"other\": \"two\\nlines\"}"},
        {TRAIN_CALLS_TAGGED, "<tool_call><function=f><parameter=n>1</function></tool_call>",
         "<tool_call><function=f><parameter=n>1</function></tool_call>"},
        {TRAIN_CALLS_BARE, " {\"name\": \"f\", \"parameters\": {\"n\": 1}}", "|f {\"n\": 1}"},
        {TRAIN_CALLS_BARE, "{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"a\": 2.0}}",
         "|f {}|g {\"a\": 2.0}"},
        {TRAIN_CALLS_BARE,
         "[{\"name\": \"f\", \"arguments\": {\"n\": 1}, \"id\": \"abc\"}, {\"name\": \"g\", \"arguments\": {}}]",
         "|f {\"n\": 1}|g {}"},
        {TRAIN_CALLS_BARE, "{\"name\": \"Bob\"}", "{\"name\": \"Bob\"}"},
        {TRAIN_CALLS_BARE, "{\"name\": \"f\", \"parameters\": {}} and more",
         "{\"name\": \"f\", \"parameters\": {}} and more"},
        {TRAIN_CALLS_BARE, "[]", "[]"},
        {TRAIN_CALLS_BARE, "Plain text {\"a\": 1}", "Plain text {\"a\": 1}"},
    };
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int round = 0; round < 20; round++)
            CHECK_STR(read_as(cases[i].form, cases[i].answer, 8, round ? &rng : NULL).text, cases[i].want);
    CHECK_STR(read_as(TRAIN_CALLS_TAGGED, cases[4].answer, 1, NULL).text, "I look.|f {}");
}

/* Random pieces of calls and texts: nothing is lost, and no cut shows. */
TEST(calls_of_tools_lose_no_text) {
    static const char *const pieces[] = {"<tool_call>",
                                         "</tool_call>",
                                         "{\"name\": \"f\", \"arguments\": {\"n\": 1}}",
                                         " ",
                                         "\n",
                                         "word",
                                         "<tool",
                                         "{",
                                         "}",
                                         "\"",
                                         "\\",
                                         "<function=f>",
                                         "<parameter=n>",
                                         "</parameter>",
                                         "[",
                                         "]",
                                         ";"};
    ravel__rng rng = ravel__rng_seed(check_seed());
    for (int64_t round = 0; round < check_scale(300, 20000); round++) {
        char answer[512] = "";
        size_t used = 0;
        int count = (int)ravel__rng_below(&rng, 9);
        train_calls_form form = ravel__rng_below(&rng, 3) ? TRAIN_CALLS_TAGGED : TRAIN_CALLS_BARE;
        for (int i = 0; i < count; i++)
            used += (size_t)snprintf(answer + used, sizeof answer - used, "%s",
                                     pieces[ravel__rng_below(&rng, sizeof pieces / sizeof *pieces)]);
        found whole = read_as(form, answer, 8, NULL), cut = read_as(form, answer, 8, &rng);
        CHECK_STR(cut.text, whole.text);
        if (!strchr(whole.text, '|')) CHECK_STR(whole.text, answer);
    }
}

/* What follows flat: contents that are lists of texts are one text, and other parts are told. */
static void check_conversation(const char *talk, int flat, int good, const char *want) {
    ravel__json *doc = NULL;
    train_out out = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(ravel__json_parse(talk, strlen(talk), NULL, &doc, &err), &err);
    CHECK_EQ(train_calls_conversation(&out, doc, ravel__json_root(doc), flat), good);
    train_out_put(&out, "", 1);
    if (want) CHECK_STR(out.data, want);
    train_out_free(&out);
    ravel__json_free(doc);
}

TEST(calls_of_earlier_turns_are_objects_for_the_template) {
    check_conversation(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"{\\\"a\\\": 1}\"}, {\"content\": null, \"tool_calls\": "
        "[{\"function\": {\"name\": \"f\", \"arguments\": \"{\\\"n\\\": 1}\"}}, {\"function\": {\"arguments\": \"no\"}}]}],"
        " \"tools\": [{\"function\": {\"arguments\": \"{}\"}}], \"n\": 2}",
        1, 1,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"{\\\"a\\\": 1}\"},{\"content\":null,\"tool_calls\":"
        "[{\"function\":{\"name\":\"f\",\"arguments\":{\"n\": 1}}},{\"function\":{\"arguments\":\"no\"}}]}],"
        "\"tools\":[{\"function\": {\"arguments\": \"{}\"}}],\"n\":2}");
    static const char parts[] =
        "{\"messages\": [{\"content\": [{\"type\": \"text\", \"text\": \"a\"}, \"b\"]}, {\"content\": []}]}";
    static const char image[] =
        "{\"messages\": [{\"content\": [{\"type\": \"image_url\", \"image_url\": {\"url\": \"x\"}}]}]}";
    check_conversation(parts, 1, 1, "{\"messages\":[{\"content\":\"a\\nb\"},{\"content\":\"\"}]}");
    check_conversation(
        parts, 0, 1, "{\"messages\":[{\"content\":[{\"type\": \"text\", \"text\": \"a\"}, \"b\"]},{\"content\":[]}]}");
    check_conversation(image, 1, 0, NULL);
    check_conversation(image, 0, 1, NULL);
}

/* What a template writes for a call says how its model calls. */
TEST(calls_of_tools_have_the_form_of_the_template) {
    static const struct {
        const char *body;
        train_calls_form form;
    } cases[] = {
        {"<tool_call>\n{\"name\": \"{{ c.name }}\", \"arguments\": {{ c.arguments | tojson }}}\n</tool_call>",
         TRAIN_CALLS_TAGGED},
        {"<tool_call><function={{ c.name }}>{% for k, v in c.arguments | items %}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}"
         "</function></tool_call>",
         TRAIN_CALLS_TAGGED},
        {"{\"name\": \"{{ c.name }}\", \"parameters\": {{ c.arguments | tojson }}}", TRAIN_CALLS_BARE},
        {"[{\"name\": \"{{ c.name }}\", \"arguments\": {{ c.arguments | tojson }}}]", TRAIN_CALLS_BARE},
        {"call {{ c.name }}", TRAIN_CALLS_NONE},
        {"", TRAIN_CALLS_NONE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[] = "/tmp/ravel-calls-XXXXXX.jinja";
        ravel_error err = RAVEL_ERROR_INIT;
        train_text *text = NULL;
        int fd = mkstemps(path, 6);
        FILE *f = fd < 0 ? NULL : fdopen(fd, "w");
        if (!f) return check_fail(__FILE__, __LINE__, "cannot write %s", path);
        (void)fprintf(
            f,
            "{%% for m in messages %%}<|im_start|>{{ m.role }}\n{{ m.content }}{%% for t in m.tool_calls or [] %%}"
            "{%% set c = t.function %%}%s{%% endfor %%}<|im_end|>{%% endfor %%}",
            cases[i].body);
        (void)fclose(f);
        ravel_status status = train_text_open("tests/golden/text/smol", 1 << 20, path, NULL, &text, &err);
        (void)unlink(path);
        if (status && strstr(err.message, "PCRE2")) return;
        CHECK_OK(status, &err);
        if (!status && !train_text_missing(text)) CHECK_EQ(train_calls_form_of(text), cases[i].form);
        train_text_free(text);
    }
}
