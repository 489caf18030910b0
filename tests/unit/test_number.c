/* Numbers as text in a host program's own locale. Suite 10-unit makes a German one, where a half is 0,5. */
#include "base/number.h"
#include "report/plan_json.h"
#include "check.h"

#include "base/json.h"
#include "base/options.h"
#include <ravel/plan.h>
#include <ravel/report.h>

#include <locale.h>
#include <stdlib.h>
#include <string.h>

static ravel_status append(void *user, const char *text, size_t bytes, ravel_error *err) {
    (void)err;
    strncat(user, text, bytes);
    return RAVEL_OK;
}

static void in_this_locale(void) {
    char text[RAVEL__NUMBER_BYTES], all[4096] = "";
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__number_shortest(0.1, 1, text);
    CHECK_STR(text, "0.1");
    CHECK(ravel__number_read("-2.5e3", NULL) == -2500);
    int64_t size = 0;
    CHECK_OK(ravel__parse_size("1.5k", &size, &err), &err);
    CHECK_EQ(size, 1536);
    ravel__json *doc = NULL;
    CHECK_OK(ravel__json_parse("{\"sigma\":1.25}", 14, NULL, &doc, &err), &err);
    CHECK(ravel__json_first(doc, ravel__json_root(doc))->as.real == 1.25);
    ravel__json_free(doc);
    const int64_t lengths[] = {3, 5, 9};
    ravel_plan_input input = {.size = sizeof input, .count = 3, .lengths = lengths};
    ravel_plan_options options;
    ravel_plan_options_default(&options);
    options.budget = 16;
    ravel_plan *plan = NULL;
    CHECK_OK(ravel_plan_create(&input, &options, &plan, &err), &err);
    ravel__printer out;
    ravel__printer_begin(&out, append, all, &err);
    ravel__plan_stats_json(&out, plan);
    CHECK_OK(ravel__printer_end(&out), &err);
    ravel_plan_free(plan);
    CHECK_HAS(all, "\"fill\":0.53125");
    (void)ravel_error_set(&err, RAVEL_E_ARGUMENT, "%.1f s", 0.5);
    CHECK_STR(err.message, "0.5 s");
}

TEST(number_text_is_the_same_in_every_locale) {
    in_this_locale();
    if (!setlocale(LC_ALL, "de_DE.UTF-8")) {
        check_skip("there is no German locale");
        return;
    }
    CHECK(strcmp(localeconv()->decimal_point, ",") == 0);
    in_this_locale();
    (void)setlocale(LC_ALL, "C");
}
