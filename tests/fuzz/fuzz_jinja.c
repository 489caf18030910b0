/* Any bytes as a chat template, over a conversation with tools, thoughts and parts: it is refused with a sentence, or
 * its text is valid UTF-8 (as the template is) whose owners cover it. */
#include "text/jinja/jinja.h"
#include "text/unicode/unicode.h"

#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static const char conversation[] =
    "[{\"role\":\"system\",\"content\":\"s\"},{\"role\":\"user\",\"content\":\"\\u00e4 'q'\\n\"},{\"role\":\"assistant\","
    "\"content\":\"<think>t</think>a\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":{\"x\":[1,2.5,null,true]}}}]},"
    "{\"role\":\"tool\",\"content\":[{\"type\":\"text\",\"text\":\"p\"}]}]";

static void check_output(const jinja_output *out) {
    const jinja_owned *owned = out->owned.at;
    size_t from = 0;
    int seen;
    for (size_t i = 0; i < out->owned_count; from = owned[i++].end)
        if (owned[i].end <= from || owned[i].owner < 0 || owned[i].owner > 4) abort();
    if (from != out->bytes || ravel__utf8_scan(out->text.at, out->bytes, &seen) != out->bytes) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static ravel__json *doc;
    static jinja_run run;
    jinja_template *t = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (!doc && ravel__json_parse(conversation, sizeof conversation - 1, NULL, &doc, NULL)) abort();
    if (!run.step_limit) ravel__jinja_run_init(&run, NULL);
    run.step_limit = 20000;
    run.memory_limit = 8 << 20;
    if (ravel__jinja_compile((const char *)data, bytes, NULL, &t, &err)) {
        if (!err.message[0]) abort();
        return 0;
    }
    if (ravel__jinja_begin(&run, t, 1000, &err)) abort();
    ravel__jinja_set(&run, "messages", ravel__jinja_from_json(&run, doc, ravel__json_root(doc), -1));
    ravel__jinja_set(&run, "bos_token", ravel__jinja_text(&run, "<s>"));
    for (int open = 0; open < 2; open++) {
        ravel__jinja_set(&run, "add_generation_prompt", ravel__jinja_bool(open));
        if (ravel__jinja_render(&run)) {
            if (!err.message[0]) abort();
            break;
        }
        check_output(run.out);
    }
    ravel__jinja_free(t);
    return 0;
}
