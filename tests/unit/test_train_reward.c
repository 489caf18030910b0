/* Verifiable tasks and the reward command. */
#include "tests/unit/check.h"

#include "train/rl/outside/reward.h"
#include "train/rl/task.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>

TEST(task_answers_are_right) {
    ravel_error err = RAVEL_ERROR_INIT;
    for (int32_t t = 0; train_task_name(t); t++) {
        const train_task *task = NULL;
        CHECK_OK(train_task_find(train_task_name(t), &task, &err), &err);
        for (int i = 0; i < 500; i++) {
            train_question q, again;
            train_task_make(task, 7, i, 1 + i % 12, &q);
            train_task_make(task, 7, i, 1 + i % 12, &again);
            CHECK_STR(q.prompt, again.prompt);
            CHECK(q.answer[0] != '\0');
            CHECK(train_task_score(&q, q.answer, strlen(q.answer), 1, 0.5) == 1);
            CHECK(train_task_score(&q, q.answer, strlen(q.answer), 0, 0.5) < 0.5);
            CHECK(train_task_score(&q, "~", 1, 1, 0.5) == 0);
            int32_t tokens[2 * TRAIN_TASK_TEXT + 2];
            int64_t prompt, n = train_task_tokens(&q, 1, tokens, &prompt);
            CHECK_EQ(n, (int64_t)(strlen(q.prompt) + strlen(q.answer) + 2));
            CHECK(tokens[0] == TRAIN_TOKEN_BOS && tokens[n - 1] == TRAIN_TOKEN_EOS && tokens[prompt] == q.answer[0]);
        }
    }
    const train_task *task = NULL;
    CHECK_EQ(train_task_find("arithmetik", &task, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "did you mean \"arithmetic\"");
}

TEST(task_arithmetic_is_arithmetic) {
    const train_task *task = NULL;
    CHECK_EQ(train_task_find("arithmetic", &task, NULL), RAVEL_OK);
    int differences = 0;
    for (int i = 0; i < 300; i++) {
        train_question q;
        long long a, b;
        char op;
        train_task_make(task, 3, i, 3, &q);
        CHECK_EQ(sscanf(q.prompt, "%lld%c%lld=", &a, &op, &b), 3);
        CHECK_EQ(atoll(q.answer), op == '+' ? a + b : a - b);
        differences += op == '-';
    }
    CHECK(differences > 30 && differences < 270);
}

static ravel_status open_reward(const char *command, double seconds, train_reward **reward, ravel_error *err) {
    const train_peer_options o = {.target = command, .processes = 1, .slots = 4, .seconds = seconds, .wait = 0.5};
    return train_reward_create(&o, 0, NULL, reward, err);
}

/* What could not be scored is an error here. */
static ravel_status score_all(train_reward *reward, const train_rollout_text *rollouts, int64_t count,
                              train_score *scores, ravel_error *err) {
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = train_reward_score(reward, rollouts, count, scores, &why, err);
    for (int64_t i = 0; i < count && !status; i++)
        if (isnan(scores[i].reward)) status = ravel_error_set(err, (ravel_status)why.status, "%s", why.message);
    return status;
}

static ravel_status score(const char *command, double seconds, int64_t count, train_score *scores, ravel_error *err) {
    train_reward *reward = NULL;
    train_rollout_text rollouts[300];
    static const char nasty[] = "a\"\\\n\0\xff{}";
    static int32_t ids[300];
    for (int64_t i = 0; i < count; i++) {
        scores[i].reward = NAN;
        train_rollout_text x = {.prompt = nasty,
                                .prompt_bytes = sizeof nasty - 1,
                                .response = "r",
                                .response_bytes = 1,
                                .prompt_ids = ids,
                                .prompt_tokens = 3,
                                .response_ids = ids,
                                .tokens = i,
                                .ended = 1,
                                .row = i % 2 ? "{\"tests\": [1, 2]}" : NULL};
        rollouts[i] = x;
    }
    ravel_status status = open_reward(command, seconds, &reward, err);
    if (!status) status = score_all(reward, rollouts, count, scores, err);
    for (int64_t i = 0; i < count && !status; i++) scores[i].reward = NAN;
    if (!status) status = score_all(reward, rollouts, count, scores, err); /* the same process again */
    train_reward_free(reward);
    return status;
}

TEST(reward_command_scores_a_batch) {
    train_score scores[300];
    ravel_error err = RAVEL_ERROR_INIT;
    /* answers each line at once; the id comes back as the reward, and as the accuracy, too */
    CHECK_OK(score("sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": \\1}/'", 60, 300, scores, &err), &err);
    for (int i = 0; i < 300; i++) CHECK(scores[i].reward == i && scores[i].accuracy == i);
    CHECK_OK(score("sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"accuracy\": 0.25, \"id\": \\1, \"reward\": \\1}/'", 60, 300,
                   scores, &err),
             &err);
    for (int i = 0; i < 300; i++) CHECK(scores[i].reward == i && scores[i].accuracy == 0.25);
}

TEST(reward_mix_is_a_weighted_sum) {
    train_mix mix;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(train_mix_parse("exact,length:-0.5,tests:2e0", 1, &mix, &err), &err);
    CHECK(mix.count == 3 && train_mix_has(&mix, TRAIN_MIX_NAMED) && !train_mix_has(&mix, TRAIN_MIX_COMMAND));
    const double values[] = {1, 0.25, 0.5};
    CHECK(train_mix_sum(&mix, values) == 1.875);
    CHECK(!train_mix_commanded(&mix, 1) && train_mix_commanded(&mix, 2));
    CHECK_OK(train_mix_parse(NULL, 1, &mix, &err), &err);
    CHECK(mix.count == 1 && train_mix_has(&mix, TRAIN_MIX_COMMAND) && mix.parts[0].weight == 1);
    CHECK_OK(train_mix_parse(NULL, 0, &mix, &err), &err);
    CHECK(mix.count == 1 && train_mix_has(&mix, TRAIN_MIX_EXACT));
    static const struct {
        const char *list, *says;
        int command;
    } wrong[] = {{"exact,", "\"\" is not NAME", 0},
                 {"", "\"\" is not NAME", 0},
                 {"exact:1:2", "is not NAME", 0},
                 {"exact:nan", "is not NAME", 0},
                 {"exact:", "is not NAME", 0},
                 {"Exact", "is not NAME", 0},
                 {"a_name_that_is_longer_than_thirty_one", "31 at most", 1},
                 {"exact,exact:2", "there twice", 0},
                 {"mean", "reward/mean is a metric", 1},
                 {"exact,tests", "\"tests\" is measured by a reward command", 0},
                 {"exact", "has no part", 1},
                 {"a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "more than 16", 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        ravel_error_clear(&err);
        CHECK_EQ(train_mix_parse(wrong[i].list, wrong[i].command, &mix, &err), RAVEL_E_ARGUMENT);
        CHECK_HAS(err.message, wrong[i].says);
    }
}

/* Parts by name, each with its weight; a line without one of them is refused. */
TEST(reward_command_answers_parts) {
    train_score scores[4];
    train_reward *reward = NULL;
    train_mix mix;
    ravel_error err = RAVEL_ERROR_INIT;
    static int32_t ids[4];
    train_rollout_text rollouts[4];
    for (int i = 0; i < 4; i++) {
        rollouts[i] = (train_rollout_text){.prompt = "p", .response = "r", .prompt_ids = ids, .response_ids = ids};
        scores[i] = (train_score){.reward = NAN};
    }
    CHECK_OK(open_reward("sed -u 's/{\"id\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": 1, \"rewards\": {\"b\": "
                         "\\1, \"a\": 3}}/'",
                         60, &reward, &err),
             &err);
    CHECK_OK(train_mix_parse("a:10,exact,b,command:100", 1, &mix, &err), &err);
    train_reward_set_mix(reward, &mix);
    CHECK_OK(score_all(reward, rollouts, 4, scores, &err), &err);
    for (int i = 0; i < 4; i++) {
        CHECK(scores[i].reward == 130 + i && !scores[i].judged);
        CHECK(scores[i].values[0] == 3 && scores[i].values[2] == i && scores[i].values[3] == 1);
        scores[i].reward = NAN;
    }
    CHECK_OK(train_mix_parse("a,missing", 1, &mix, &err), &err);
    train_reward_set_mix(reward, &mix);
    CHECK_EQ(score_all(reward, rollouts, 4, scores, &err), RAVEL_E_CALLBACK);
    CHECK_HAS(err.message, "\"rewards\": {\"missing\": a finite number}");
    train_reward_free(reward);
}

/* A line has the ids of prompt and answer beside their bytes. */
TEST(reward_command_gets_token_ids) {
    train_score scores[3];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(score("sed -u -n 's/{\"id\": \\([0-9]*\\),.*, \"prompt_ids\": \\[0, 0, 0\\], \"response_ids\": "
                   "\\[[0, ]*\\], \"tokens\": \\([0-9]*\\),.*/{\"id\": \\1, \"reward\": \\2}/p'",
                   60, 3, scores, &err),
             &err);
    for (int i = 0; i < 3; i++) CHECK(scores[i].reward == i);
}

/* The row of the data file is a member of the line, and the line is still JSON. */
TEST(reward_command_gets_the_row) {
    train_score scores[4];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(
        score(
            "sed -u -e 's/{\"id\": \\([0-9]*\\),.*, \"ended\": true, \"row\": {\"tests\": \\[1, 2\\]}}$/{\"id\": \\1, "
            "\"reward\": 7}/' -e 's/{\"id\": \\([0-9]*\\),.*, \"ended\": true}$/{\"id\": \\1, \"reward\": 3}/'",
            20, 4, scores, &err),
        &err);
    for (int i = 0; i < 4; i++) CHECK(scores[i].reward == (i % 2 ? 7 : 3));
}

/* A command has the signals that a shell starts it with, whatever the trainer ignores. */
TEST(reward_command_has_its_own_signals) {
    train_score scores[4];
    ravel_error err = RAVEL_ERROR_INIT;
    void (*before)(int) = signal(SIGPIPE, SIG_IGN);
    CHECK_EQ(score("kill -PIPE $$; exit 9", 20, 4, scores, &err), RAVEL_E_CALLBACK);
    (void)signal(SIGPIPE, before);
    CHECK_HAS(err.message, "killed by signal 13");
}

/* A connection that is refused before it begins: no socket is ever connected. */
TEST(reward_server_out_of_reach) {
    train_score scores[4];
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(score("http://255.255.255.255:80/score", 5, 4, scores, &err), RAVEL_E_TIMEOUT);
    CHECK_HAS(err.message, "no server answers");
}

TEST(reward_command_failures_are_sentences) {
    static const struct {
        const char *command, *says;
        double seconds;
    } cases[] = {
        {"exit 3", "exit code 3", 60},
        {"kill -9 $$", "signal 9", 60},
        {"cat", "a finite number", 60},
        {"echo nonsense; cat >/dev/null", "not a JSON line", 60},
        {"read x; echo '{\"id\":0,\"reward\":1}'; echo '{\"id\":0,\"reward\":1}'; cat >/dev/null", "no such id", 60},
        {"read x; echo '{\"id\":99,\"reward\":1}'; cat >/dev/null", "no such id", 60},
        {"read x; echo '{\"id\":0,\"reward\":1e999}'; cat >/dev/null", "not a JSON line", 60},
        {"sleep 100", "no answer came within 0.1 s", 0.1},
        {"exec 1>&-; cat >/dev/null", "closed its output", 60},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        train_score scores[2];
        ravel_error err = RAVEL_ERROR_INIT;
        ravel_status status = score(cases[i].command, cases[i].seconds, 2, scores, &err);
        CHECK(status == RAVEL_E_CALLBACK || status == RAVEL_E_TIMEOUT);
        CHECK_HAS(err.message, cases[i].says);
    }
}
