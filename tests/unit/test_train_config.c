/* The configuration of a run: one name one option, text and back, what does not go together. */
#include "tests/unit/check.h"

#include "base/yaml.h"

#include <stdlib.h>
#include "train/run/config/config.h"

#include "base/options.h"
#include "base/json.h"

#include <ravel/weights.h>

TEST(train_config_names_are_unique) {
    train_config c;
    train_config_default(&c);
    for (int kind = 0; kind < TRAIN_KINDS; kind++) {
        train_section parts[TRAIN_SECTIONS];
        int count = train_config_sections(&c, (train_kind)kind, parts);
        for (int i = 0; i < count; i++)
            for (const ravel_option *row = parts[i].table; row->name; row++)
                for (int j = 0; j < count; j++) {
                    const ravel_option *other = ravel_option_find(parts[j].table, row->name);
                    if (other && other != row) check_fail(__FILE__, __LINE__, "%s is there twice", row->name);
                }
    }
}

TEST(train_config_goes_through_json) {
    for (int kind = 0; kind < TRAIN_KINDS; kind++) {
        train_config c, back;
        ravel__json *doc = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config_default(&c);
        c.run.steps = 7;
        c.run.run = "a \"strange\" folder";
        c.learn.lr = 1.25e-5;
        c.learn.shard = TRAIN_SHARD_STATES;
        c.plan.budget = 12345;
        c.policy.advantage = RAVEL_ADVANTAGE_RLOO;
        char *text = train_config_text(&c, (train_kind)kind);
        CHECK_OK(ravel__json_parse(text, strlen(text), NULL, &doc, &err), &err);
        train_config_default(&back);
        CHECK_OK(train_config_json(&back, (train_kind)kind, &(train_config_file){.doc = doc}, &err), &err);
        char *again = train_config_text(&back, (train_kind)kind);
        CHECK_STR(again, text);
        free(again);
        free(text);
        CHECK(back.run.steps == 7 && back.learn.lr == 1.25e-5 && back.plan.budget == 12345);
        ravel__json_free(doc);
        doc = NULL;
        CHECK_OK(ravel__json_parse("{\"stpes\": 3}", 12, NULL, &doc, &err), &err);
        CHECK_EQ(train_config_json(&back, (train_kind)kind, &(train_config_file){.doc = doc}, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, "did you mean \"steps\"");
        ravel__json_free(doc);
    }
}

/* An option of any length is stored whole, also where most of its bytes are escaped. */
TEST(train_config_text_is_as_long_as_its_options) {
    static char command[40000], path[5000];
    train_config c, back;
    ravel__json *doc = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    memset(command, '\x01', sizeof command - 1);
    memset(path, '"', sizeof path - 1);
    c.grpo.reward_command = command;
    c.run.run = path;
    char *text = train_config_text(&c, TRAIN_GRPO);
    size_t bytes = strlen(text);
    CHECK(bytes > 6 * (sizeof command - 1) + 2 * (sizeof path - 1));
    CHECK_OK(ravel__json_parse(text, bytes, NULL, &doc, &err), &err);
    train_config_default(&back);
    CHECK_OK(train_config_json(&back, TRAIN_GRPO, &(train_config_file){.doc = doc}, &err), &err);
    CHECK_STR(back.grpo.reward_command, command);
    CHECK_STR(back.run.run, path);
    ravel__json_free(doc);
    free(text);
}

/* Each row sets some options and says what the sentence must hold; NULL: it is accepted. */
TEST(train_config_refuses_what_does_not_go_together) {
    static const struct {
        train_kind kind;
        const char *json, *says;
    } cases[] = {
        {TRAIN_SFT, "{}", "give one of --data"},
        {TRAIN_SFT, "{\"task\": \"sort\"}", NULL},
        {TRAIN_SFT, "{\"task\": \"sort\", \"data\": \"x\"}", "more than one was given"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"epochs\": 2}", "a task has no end"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"eval-share\": 0.1}", "--eval-share is of the rows"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"model\": \"x\", \"shape\": \"y\"}", "not both"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"model\": \"x\", \"hidden\": 64}", "--hidden is for a new byte model"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"shape\": \"x\", \"kv-heads\": 1}", "--shape brings its own shape"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"model\": \"x\", \"hidden\": 128}", NULL},
        {TRAIN_SFT, "{\"task\": \"sort\", \"vocab\": 100}", "a byte model needs 258"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"gpu\": \"h1000\"}", "the peak of \"h1000\" is not known"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"gpu\": \"h100\"}", NULL},
        {TRAIN_SFT, "{\"task\": \"sort\", \"checkpoint-every\": \"soon\"}",
         "checkpoint-every: \"soon\" is not an interval"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"checkpoint-every\": \"1.5\"}", "is not an interval"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"checkpoint-every\": \"500\"}", NULL},
        {TRAIN_SFT, "{\"task\": \"sort\", \"checkpoint-every\": \"2h\"}", NULL},
        {TRAIN_SFT, "{\"task\": \"sort\", \"min-lr\": 0.5}", "above lr"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"lr\": -0.5}", "0 or more, or -1"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"lr\": -1}", NULL},
        {TRAIN_SFT, "{\"task\": \"sort\", \"norm\": 7}", "give both, or neither"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"norm\": 7, \"aggregation\": \"seq-mean-token-sum-norm\"}", NULL},
        {TRAIN_SFT, "{\"task\": \"sort\", \"eval-every\": 2, \"keep-best\": true}", NULL},
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"eval-every\": 2}", "--eval-every needs something to evaluate"},
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"keep-best\": true}",
         "--keep-best needs something to evaluate"},
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"keep-best\": true, \"eval-share\": 0.1}", NULL},
        {TRAIN_SFT, "{\"data\": \"x\"}", "which model is to learn this data"},
        {TRAIN_SFT, "{\"data\": \"x\", \"resume\": true}", NULL}, /* a run from before this was asked */
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"eval-data\": \"y\", \"eval-share\": 0.1}", "not both"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"eval-data\": \"y\"}", "--eval-data goes with --data"},
        {TRAIN_DPO, "{\"data\": \"x\"}", "dpo improves a model: give --model"},
        {TRAIN_DPO, "{\"data\": \"x\", \"model\": \"m\"}", NULL},
        {TRAIN_DPO, "{\"kind\": \"dpo\", \"data\": \"x\", \"hidden\": 64, \"level\": 2}", NULL}, /* of an older run */
        {TRAIN_DPO, "{\"data\": \"x\", \"hidden\": 64, \"eval-every\": 2}",
         "give --eval-data FILE or --eval-share too"},
        {TRAIN_GRPO, "{\"keep-best\": true}", NULL},
        {TRAIN_GRPO, "{\"keep-best\": true, \"eval-prompts\": 0}", "give --eval-prompts too"},
        {TRAIN_GRPO, "{}", NULL},
        {TRAIN_GRPO, "{\"task\": \"sort\", \"data\": \"x\"}", "not both"},
        {TRAIN_GRPO, "{\"updates-per-batch\": 99}", "cannot be dealt"},
        {TRAIN_GRPO, "{\"group-size\": 1}", "2 or more"},
        {TRAIN_GRPO, "{\"group-size\": 1, \"advantage\": \"none\"}", NULL},
        {TRAIN_GRPO, "{\"eval-share\": 0.5}", "--eval-share goes with --data"},
        {TRAIN_GRPO, "{\"reward\": \"exact:1,ended:0.1\"}", NULL},
        {TRAIN_GRPO, "{\"reward\": \"exact,style\"}", "measured by a reward command"},
        {TRAIN_GRPO, "{\"reward\": \"exact\", \"env-command\": \"x\"}", "leave out --reward"},
        {TRAIN_GRPO, "{\"dual-clip\": 0.9}", "0 (off) or above 1"},
        {TRAIN_GRPO, "{\"dual-clip\": 1}", "0 (off) or above 1"},
        {TRAIN_GRPO, "{\"dual-clip\": 3}", NULL},
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"budget\": null}", NULL},
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"budget\": null, \"count\": 4}", NULL},
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"budget\": null, \"method\": \"ffd\"}", "leave out --method"},
        {TRAIN_SFT, "{\"task\": \"sort\", \"budget\": null}", "have no longest one; give --budget"},
        {TRAIN_SFT, "{\"data\": \"x\", \"hidden\": 64, \"count\": 4}", "--count is of --method count"},
        {TRAIN_GRPO, "{\"method\": \"count\", \"count\": 4, \"budget\": 0}", NULL},
        {TRAIN_GRPO, "{\"single\": true}", NULL},
        {TRAIN_GRPO, "{\"cost\": \"24:1\"}", NULL},
        {TRAIN_GRPO, "{\"cost\": \"24:\"}", "is not LINEAR:QUADRATIC"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_config c;
        ravel__json *doc = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config_default(&c);
        CHECK_OK(ravel__json_parse(cases[i].json, strlen(cases[i].json), NULL, &doc, &err), &err);
        CHECK_OK(train_config_json(&c, cases[i].kind, &(train_config_file){.doc = doc}, &err), &err);
        train_config_settle(&c, cases[i].kind);
        ravel_status status = train_config_check(&c, cases[i].kind, &err);
        if (status != (cases[i].says ? RAVEL_E_ARGUMENT : RAVEL_OK) ||
            (cases[i].says && !strstr(err.message, cases[i].says)))
            check_fail(__FILE__, __LINE__, "%s: \"%s\"", cases[i].json, err.message);
        ravel__json_free(doc);
    }
}

/* Values with which AdamW divides 0 by 0, half a divisor, and what a command does not have. */
TEST(train_config_refuses_values) {
    static const struct {
        train_kind kind;
        const char *json;
    } cases[] = {
        {TRAIN_SFT, "{\"beta1\": 1}"},       {TRAIN_SFT, "{\"beta2\": 1}"}, {TRAIN_SFT, "{\"eps\": 0}"},
        {TRAIN_SFT, "{\"norm\": 1.5}"},      {TRAIN_DPO, "{\"level\": 3}"}, {TRAIN_DPO, "{\"mock\": \"{}\"}"},
        {TRAIN_DPO, "{\"task\": \"sort\"}"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_config c;
        ravel__json *doc = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config_default(&c);
        CHECK_OK(ravel__json_parse(cases[i].json, strlen(cases[i].json), NULL, &doc, &err), &err);
        if (train_config_json(&c, cases[i].kind, &(train_config_file){.doc = doc}, &err) != RAVEL_E_ARGUMENT)
            check_fail(__FILE__, __LINE__, "%s is accepted", cases[i].json);
        ravel__json_free(doc);
    }
}

TEST(train_config_settles_by_case) {
    static const struct {
        train_kind kind;
        const char *model;
        double lr;
    } cases[] = {{TRAIN_SFT, NULL, 1e-3}, {TRAIN_SFT, "x", 2e-5}, {TRAIN_GRPO, NULL, 1e-3}, {TRAIN_GRPO, "x", 1e-6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_config c;
        train_config_default(&c);
        c.model.model = cases[i].model;
        train_config_settle(&c, cases[i].kind);
        CHECK(c.learn.lr == cases[i].lr);
        c.learn.lr = 0;
        train_config_settle(&c, cases[i].kind);
        CHECK(c.learn.lr == 0); /* what was given stays */
    }
    for (int i = 0; i < 4; i++) { /* answers of a real model to real prompts are longer than those to tasks */
        train_config c;
        train_config_default(&c);
        c.model.model = i & 1 ? "x" : NULL;
        c.grpo.data = i & 2 ? "y" : NULL;
        train_config_settle(&c, TRAIN_GRPO);
        CHECK_EQ(c.grpo.scoring.max_tokens, i == 3 ? 256 : 16);
        c.grpo.scoring.max_tokens = 5;
        train_config_settle(&c, TRAIN_GRPO);
        CHECK_EQ(c.grpo.scoring.max_tokens, 5);
    }
    train_interval x;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(train_interval_parse("10m", &x, &err), &err);
    CHECK(x.seconds == 600 && x.updates == 0);
    CHECK_OK(train_interval_parse("250", &x, &err), &err);
    CHECK(x.seconds == 0 && x.updates == 250);
}

TEST(train_config_presets_are_what_their_papers_have) {
    static const struct {
        const char *word;
        int32_t advantage, aggregation, ratio, dynamic;
        double low, high, kl;
    } cases[] = {
        {"grpo", RAVEL_ADVANTAGE_GRPO, RAVEL_SEQ_MEAN_TOKEN_MEAN, RAVEL_RATIO_TOKEN, 0, 0.2, 0.2, 0.04},
        {"dr-grpo", RAVEL_ADVANTAGE_DR_GRPO, RAVEL_SEQ_MEAN_TOKEN_SUM_NORM, RAVEL_RATIO_TOKEN, 0, 0.2, 0.2, 0},
        {"dapo", RAVEL_ADVANTAGE_GRPO, RAVEL_TOKEN_MEAN, RAVEL_RATIO_TOKEN, 1, 0.2, 0.28, 0},
        {"gspo", RAVEL_ADVANTAGE_GRPO, RAVEL_SEQ_MEAN_TOKEN_MEAN, RAVEL_RATIO_SEQUENCE, 0, 3e-4, 4e-4, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_config c;
        ravel_error err = RAVEL_ERROR_INIT;
        train_config_default(&c);
        c.grpo.preset = ravel__choice_index(TRAIN_PRESET_CHOICES, cases[i].word);
        CHECK_OK(train_config_preset(&c, &err), &err);
        CHECK(c.policy.advantage == cases[i].advantage && c.learn.aggregation == cases[i].aggregation);
        CHECK(c.policy.ratio == cases[i].ratio && c.grpo.dynamic_sampling == cases[i].dynamic);
        CHECK(c.policy.clip_low == cases[i].low && c.policy.clip_high == cases[i].high && c.policy.kl == cases[i].kl);
    }
}

/* ---- YAML ----------------------------------------------------------------------------------------------- */

TEST(train_config_yaml_is_the_json_it_looks_like) {
    static const struct {
        const char *yaml, *json;
    } cases[] = {
        {"", "{}"},
        {"# all\n---\nsteps: 200 # so many\n\nlr: 1e-5\nquiet: true\n", "{\"steps\":200,\"lr\":1e-5,\"quiet\":true}"},
        {"a: b c#d #e\nb: 'it''s #1' # x\n\"c d\": \"x\\ny: \\\"z\\\"\"\r\n",
         "{\"a\":\"b c#d\",\"b\":\"it's #1\",\"c d\":\"x\\ny: \\\"z\\\"\"}"},
        {"a: ~\nb:\nc: Null\nd: 16k\ne: 1.\nf: -\ng: a:b:0.7 c:1",
         "{\"a\":null,\"b\":null,\"c\":null,\"d\":\"16k\",\"e\":\"1.\",\"f\":\"-\",\"g\":\"a:b:0.7 c:1\"}"},
        {"a: 1\n  b: 2\n", NULL},
        {"a: [1, 'b, ]' , c d ] # x\nb: []\nc:\n  - e.json:1\n# so\n- \"f g\"\nd: 1",
         "{\"a\":[1,\"b, ]\",\"c d\"],\"b\":[],\"c\":[\"e.json:1\",\"f g\"],\"d\":1}"},
        {"a: [1, 2\n", NULL},
        {"a: [1] 2\n", NULL},
        {"a: [[1]]\n", NULL},
        {"a: 1\n- 2\n", NULL},
        {"- a\n", NULL},
        {"a: 'b\n", NULL},
        {"a: \"b\\q\"\n", NULL},
        {"a: \"b\" c\n", NULL},
        {"just words\n", NULL},
        {"a: |\n  b\n", NULL},
        {"a: &x 1\n", NULL},
        {"a: {b: 1}\n", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *json = NULL;
        size_t bytes = 0;
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_status status = ravel__yaml_to_json(cases[i].yaml, strlen(cases[i].yaml), &json, &bytes, &err);
        CHECK_EQ(status, cases[i].json ? RAVEL_OK : RAVEL_E_DATA);
        size_t used = 0, lines = 0;
        for (size_t k = 0; json && k < bytes; k++) {
            lines += json[k] == '\n';
            if (json[k] != '\n') json[used++] = json[k];
        }
        if (json) json[used] = '\0';
        if (cases[i].json) CHECK_STR(json, cases[i].json);
        for (const char *c = cases[i].yaml; cases[i].json && *c; c++) lines -= *c == '\n';
        CHECK_EQ(lines, 0); /* so that errors name the line of the file */
        if (!cases[i].json) CHECK_HAS(err.message, "line ");
        free(json);
    }
}

/* Keys of other systems are answered, errors name their line, lists are the words of the command. */
TEST(train_config_answers_in_files) {
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"steps: 3\n# x\nlearning_rate: 1\n", "line 3: unknown option \"learning_rate\"; here it is --lr"},
        {"{\"steps\": 3,\n \"micro_token_budget\": 1}",
         "line 2: unknown option \"micro_token_budget\"; here it is --budget"},
        {"model: lr\nlr: much\n", "line 2: lr: \"much\" is not a number"},
        {"stpes: 1\n", "line 1: unknown option \"stpes\"; did you mean \"steps\"?"},
        {"steps: [5]\n", "line 1: steps must be a number"},
        {"data: [a.json, [b]]\n", "line 1: "},
        {"data:\n- a.json:0.7\n- 'b c.json:0.3'\neval-data: [e f.json]\nsinks: [jsonl, csv]\n", NULL},
        {"{\"data\": [\"a.json:0.7\", \"b c.json:0.3\"], \"eval-data\": [\"e f.json\"], \"sinks\": [\"jsonl\", \"csv\"]}",
         NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[] = "/tmp/ravel-config-XXXXXX";
        train_config c;
        train_config_file file = {0};
        ravel_error err = RAVEL_ERROR_INIT;
        FILE *f = fdopen(mkstemp(path), "w");
        (void)fputs(cases[i].text, f);
        (void)fclose(f);
        train_config_default(&c);
        ravel_status status = train_config_file_read(path, &file, &err);
        if (!status) status = train_config_json(&c, TRAIN_SFT, &file, &err);
        (void)remove(path);
        CHECK_EQ(!status, !cases[i].says);
        if (cases[i].says) CHECK_HAS(err.message, cases[i].says);
        if (!cases[i].says) CHECK_STR(c.source.data, "a.json:0.7 b\\ c.json:0.3");
        if (!cases[i].says) CHECK_STR(c.sft.eval_data, "e\\ f.json");
        if (!cases[i].says) CHECK_STR(c.run.sinks, "jsonl,csv");
        train_config_file_close(&file);
    }
}

TEST(train_config_refuses_a_key_that_is_there_twice) {
    static const char text[] = "{\"max-skipped\": 3, \"lr\": 1, \"max_skipped\": 4}";
    train_config c;
    ravel__json *doc = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    train_config_default(&c);
    CHECK_OK(ravel__json_parse(text, sizeof text - 1, NULL, &doc, &err), &err);
    CHECK_EQ(train_config_json(&c, TRAIN_SFT, &(train_config_file){.doc = doc}, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "is there twice");
    ravel__json_free(doc);
}
