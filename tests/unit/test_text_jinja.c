/* Chat templates: what they may not do, what threads share, and where answers are found. Their language is compared with
 * Jinja's by tests/text/templates.py. */
#include "tests/unit/check.h"

#include "text/jinja/jinja.h"

#include "base/json.h"

#include <ravel/chat.h>

#include <stdlib.h>

/* The text of a template over one message; NULL: refused, and why. */
static const char *render(jinja_run *run, const char *text, size_t steps, size_t memory, ravel_error *err) {
    static const char json[] = "[{\"role\":\"user\",\"content\":\"caf\\u00e9\"}]";
    static jinja_template *t;
    ravel__json *doc = NULL;
    ravel__jinja_free(t);
    t = NULL;
    ravel_error_clear(err);
    if (ravel__jinja_compile(text, strlen(text), NULL, &t, err)) return NULL;
    run->step_limit = steps;
    run->memory_limit = memory;
    if (ravel__json_parse(json, sizeof json - 1, NULL, &doc, NULL) || ravel__jinja_begin(run, t, 1700000000, err))
        return NULL;
    ravel__jinja_set(run, "messages", ravel__jinja_from_json(run, doc, ravel__json_root(doc), -1));
    ravel_status status = ravel__jinja_render(run);
    ravel__json_free(doc);
    return status ? NULL : run->out->text.at;
}

TEST(jinja_limits_hold) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{% for i in range(9000) %}{% for k in 'aaaaaaaa' %}{% set x = i * i // 7 %}{% endfor %}{% endfor %}",
         "steps"},
        {"{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "deep"},
        {"{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "MiB"},
        {"{{ 'x' * 100000000 }}", "steps"},
        {"{% for i in range(99999999) %}{% endfor %}", "range"},
        {"{{ 9223372036854775807 + 1 }}", "2^63"},
        {"{{ messages.append(1) }}", "must not change"},
        {"{{ ''.__class__.__mro__ }}", "undefined"},
        {"{% include 'x' %}", "there is no statement include"},
        {"{{ 1 | nosuch }}", "there is no filter nosuch"},
        {"a\n{% if %}", "line 2"},
        {"{% if true %}", "the template ends before"},
        {"{{ 'open }}", "no end"},
        {"{# open", "no end"},
        {"{{ raise_exception('never so') }}", "never so"},
    };
    jinja_run run;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__jinja_run_init(&run, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK(render(&run, cases[i].text, 200000, 64 << 20, &err) == NULL);
        CHECK_HAS(err.message, cases[i].says);
        CHECK_STR(render(&run, "{{ messages[0].content }}", 1000, 1 << 20, &err), "caf\303\251"); /* it goes on */
    }
    ravel__jinja_run_free(&run);
}

TEST(jinja_nesting_has_an_end) {
    enum { DEEP = 5000 };
    char *text = malloc(8 * DEEP + 64);
    jinja_run run;
    ravel_error err = RAVEL_ERROR_INIT;
    static const char *const openings[] = {"(", "[", "-", "not ", "{1:"};
    static const char closings[] = {')', ']', ' ', ' ', '}'};
    ravel__jinja_run_init(&run, NULL);
    for (size_t k = 0; text && k < sizeof openings / sizeof *openings; k++) {
        strcpy(text, "{{ ");
        for (int i = 0; i < DEEP; i++)
            memcpy(text + 3 + (size_t)i * strlen(openings[k]), openings[k], strlen(openings[k]) + 1);
        size_t used = strlen(text);
        memset(text + used, closings[k], DEEP);
        memcpy(text + used + DEEP, " }}", 4);
        CHECK(render(&run, text, 300000, 4 << 20, &err) == NULL);
        CHECK_HAS(err.message, "nested too deeply");
    }
    free(text);
    ravel__jinja_run_free(&run);
}

TEST(jinja_bytes_know_their_message) {
    jinja_run run;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__jinja_run_init(&run, NULL);
    const char *text = render(&run, "<{{ ('[' ~ messages[0].content ~ ']').upper()[1:4] }}|{{ messages[0]|tojson }}>",
                              10000, 1 << 20, &err);
    CHECK_STR(text, "<CAF|{\"role\": \"user\", \"content\": \"caf\303\251\"}>");
    const jinja_owned *owned = run.out->owned.at;
    size_t from = 0, mine = 0;
    for (size_t i = 0; i < run.out->owned_count; from = owned[i++].end)
        mine += owned[i].owner ? owned[i].end - from : 0;
    CHECK_EQ(mine, strlen("CAF") + strlen("{\"role\": \"user\", \"content\": \"caf\303\251\"}"));
    CHECK_EQ(owned[0].owner, 0);
    CHECK_EQ(owned[0].end, 1);
    ravel__jinja_run_free(&run);
}

static ravel_status render_with(const ravel_allocator *allocator, void *user) {
    static const char text[] =
        "{% macro m(x) %}{% for k in x %}{{ k|tojson }}{% endfor %}{% endmacro %}{% set s %}{{ m([1, 'a', {'b': 2}]) }}{% endset %}"
        "{{ s.split(',')|map('upper')|join('-') }}{% generation %}x{% endgeneration %}";
    jinja_template *t = NULL;
    jinja_run run;
    ravel_error err = RAVEL_ERROR_INIT;
    (void)user;
    ravel_status status = ravel__jinja_compile(text, sizeof text - 1, allocator, &t, &err);
    if (status) return status;
    ravel__jinja_run_init(&run, allocator);
    status = ravel__jinja_begin(&run, t, 0, &err);
    if (!status) status = ravel__jinja_render(&run);
    ravel__jinja_run_free(&run);
    ravel__jinja_free(t);
    return status;
}

TEST(jinja_every_allocation_may_fail) {
    CHECK(check_every_allocation(render_with, NULL) > 5);
}
