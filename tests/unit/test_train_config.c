/* The configuration of a run: one name one option, text and back, what does not go together. */
#include "tests/unit/check.h"

#include "train/run/config.h"

TEST(train_config_names_are_unique) {
    train_config c;
    train_config_default(&c);
    for (int kind = TRAIN_SFT; kind <= TRAIN_GRPO; kind++) {
        train_part parts[TRAIN_PARTS];
        int count = train_config_parts(&c, (train_kind)kind, parts);
        for (int i = 0; i < count; i++)
            for (const ravel_option *row = parts[i].table; row->name; row++)
                for (int j = 0; j < count; j++) {
                    const ravel_option *other = ravel_option_find(parts[j].table, row->name);
                    if (other && other != row) check_fail(__FILE__, __LINE__, "%s is there twice", row->name);
                }
    }
}

TEST(train_config_goes_through_json) {
    for (int kind = TRAIN_SFT; kind <= TRAIN_GRPO; kind++) {
        train_config c, back;
        static char text[16384], again[16384];
        ravel_json *doc = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config_default(&c);
        c.run.steps = 7;
        c.run.run = "a \"strange\" folder";
        c.learn.lr = 1.25e-5;
        c.learn.zero = 1;
        c.plan.budget = 12345;
        c.policy.advantage = TRAIN_ADVANTAGE_RLOO;
        size_t bytes = train_config_text(&c, (train_kind)kind, text, sizeof text);
        CHECK(bytes < sizeof text);
        CHECK_OK(ravel_json_parse(text, bytes, NULL, &doc, &err), &err);
        train_config_default(&back);
        CHECK_OK(train_config_json(&back, (train_kind)kind, doc, &err), &err);
        train_config_text(&back, (train_kind)kind, again, sizeof again);
        CHECK_STR(again, text);
        CHECK(back.run.steps == 7 && back.learn.lr == 1.25e-5 && back.plan.budget == 12345);
        ravel_json_free(doc);
        doc = NULL;
        CHECK_OK(ravel_json_parse("{\"stpes\": 3}", 12, NULL, &doc, &err), &err);
        CHECK_EQ(train_config_json(&back, (train_kind)kind, doc, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, "did you mean \"steps\"");
        ravel_json_free(doc);
    }
}

TEST(train_config_refuses_what_does_not_go_together) {
    train_config c;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    CHECK_EQ(train_config_check(&c, TRAIN_SFT, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "give one of --data");
    ravel_error_clear(&err);
    c.sft.task = "sort";
    CHECK_OK(train_config_check(&c, TRAIN_SFT, &err), &err);
    c.model.model = c.model.shape = "x";
    CHECK_EQ(train_config_check(&c, TRAIN_SFT, &err), RAVEL_E_ARGUMENT);
    ravel_error_clear(&err);
    c.model.model = c.model.shape = NULL;
    CHECK_OK(train_config_check(&c, TRAIN_GRPO, &err), &err);
    c.grpo.updates = 99;
    CHECK_EQ(train_config_check(&c, TRAIN_GRPO, &err), RAVEL_E_ARGUMENT);
}
