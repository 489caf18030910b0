/* Verifiable tasks and the reward command. */
#include "tests/unit/check.h"

#include "train/rl/reward.h"
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
    ravel_status status = train_reward_create(command, seconds, &reward, err);
    if (!status) status = train_reward_score(reward, rollouts, count, scores, err);
    for (int64_t i = 0; i < count && !status; i++) scores[i].reward = NAN;
    if (!status) status = train_reward_score(reward, rollouts, count, scores, err); /* the same process again */
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

TEST(reward_server_is_reached_without_tls) {
    train_reward *reward = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_EQ(train_reward_create("https://host/score", 1, &reward, &err), RAVEL_E_ARGUMENT);
    CHECK_HAS(err.message, "plain http://");
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
    CHECK_EQ(score("http://255.255.255.255:80/score", 5, 4, scores, &err), RAVEL_E_IO);
    CHECK_HAS(err.message, "no server answers");
}

TEST(reward_command_failures_are_sentences) {
    static const struct {
        const char *command, *says;
        double seconds;
    } cases[] = {
        {"exit 3", "exit code 3", 60},
        {"kill -9 $$", "signal 9", 60},
        {"cat", "expected {\"id\"", 60},
        {"echo nonsense; cat >/dev/null", "not a JSON line", 60},
        {"read x; echo '{\"id\":0,\"reward\":1}'; echo '{\"id\":0,\"reward\":1}'; cat >/dev/null", "twice", 60},
        {"read x; echo '{\"id\":99,\"reward\":1}'; cat >/dev/null", "0 to 1", 60},
        {"read x; echo '{\"id\":0,\"reward\":1e999}'; cat >/dev/null", "not a JSON line", 60},
        {"sleep 100", "0 of 2 rewards", 0.1},
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
