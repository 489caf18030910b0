/* Environments: lines to processes and back, what is lost and who may be the reason; the tokens between two answers. */
#include "tests/unit/check.h"

#include "base/json.h"
#include "base/rng.h"
#include "train/learn/choice.h"
#include "train/rl/outside/env.h"
#include "train/rl/turns.h"

#include <ravel/tokenizer.h>

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* ---- processes ------------------------------------------------------------------------------------------ */

/* Starts say their seed; the reward of a step is its number of ids. An action "kill" ends the process. */
#define GAME                                                                                                            \
    "while read -r x; do id=${x#*: }; id=${id%%,*}; case $x in *start*) seed=${x#*seed\\\": }; seed=${seed%%[,\\}]*}; " \
    "echo \"{\\\"id\\\": $id, \\\"observation\\\": \\\"s$seed\\\"}\";; *kill*) exit 5;; *over*) "                       \
    "echo \"{\\\"id\\\": $id, \\\"reward\\\": 2, \\\"end\\\": true, \\\"accuracy\\\": 0.5}\";; *'\"end\"'*) ;; *) "     \
    "echo \"{\\\"id\\\": $id, \\\"observation\\\": \\\"o\\\", \\\"role\\\": \\\"tool\\\", \\\"reward\\\": 0.25}\";; esac; done"

static train_peer *open_env(const char *command, int32_t processes, double seconds) {
    train_peer_options options = {
        .target = command, .processes = processes, .slots = 4, .seconds = seconds, .wait = 60};
    train_peer *env = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    if (train_env_open(&options, &env, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return env;
}

/* The next answer, waited for; its texts live until the next one. */
static train_env_reply next(train_peer *env) {
    static char last[4096];
    train_out heard = {0};
    train_env_reply r = {.id = -1};
    size_t at = 0;
    for (int i = 0; i < 1200 && !train_env_take(env, &heard); i++) train_peer_wait(env, 0.1);
    size_t used = heard.used < sizeof last ? heard.used : 0;
    if (used) memcpy(last, heard.data, used);
    train_out_free(&heard);
    heard = (train_out){.data = last, .used = used};
    (void)train_env_heard(&heard, &at, &r);
    return r;
}

static void act(train_peer *env, int64_t id, const char *text) {
    static const int32_t ids[] = {1, 2, 3};
    const train_env_action a = {.text = text, .bytes = strlen(text), .ids = ids, .tokens = 3, .ended = 1};
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(train_env_step(env, id, &a, &err), &err);
}

TEST(env_episodes_side_by_side) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_peer *env = open_env(GAME, 2, 60);
    ravel__rng rng = ravel__rng_seed(check_seed());
    int64_t turns[40] = {0};
    for (int64_t id = 0; id < 40; id++)
        CHECK_OK(train_env_start(env, id, 7 * id, id % 2 ? "{\"q\": 1}" : NULL, 0, &err), &err);
    for (int64_t over = 0; over < 40;) {
        train_env_reply r = next(env);
        char want[32];
        if (r.id < 0 || r.status) return check_fail(__FILE__, __LINE__, "status %d: %s", r.status, r.observation);
        (void)snprintf(want, sizeof want, "s%lld", 7 * (long long)r.id);
        if (r.end) CHECK(r.reward == 2 && r.accuracy == 0.5);
        if (!r.end) CHECK_STR(r.observation, turns[r.id] ? "o" : want);
        if (!r.end) CHECK_STR(r.role, turns[r.id] ? "tool" : "user");
        over += r.end;
        if (r.end) continue;
        if (++turns[r.id] == 5) { /* given up; nothing comes back */
            train_env_end(env, r.id, "turns");
            over++;
        } else {
            act(env, r.id, ravel__rng_below(&rng, 4) ? "a \"quoted\"\nline" : "over");
        }
    }
    train_peer_free(env);
}

/* The one that kills its process is better alone, where it costs nobody else, and a whole try; the others begin again. */
TEST(env_a_lost_process_costs_its_episodes) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_peer *env = open_env(GAME, 1, 60);
    int suspects = 0, lost = 0;
    for (int64_t id = 0; id < 4; id++) CHECK_OK(train_env_start(env, id, id, NULL, 0, &err), &err);
    for (int i = 0; i < 4; i++) CHECK_EQ(next(env).status, RAVEL_OK);
    act(env, 2, "kill");
    for (int i = 0; i < 4; i++) {
        train_env_reply r = next(env);
        CHECK(r.status == RAVEL_E_CALLBACK && r.end);
        CHECK_HAS(r.observation, "exit code 5");
        CHECK(r.alone == (r.id == 2) && r.cost == (r.id == 2));
        lost++, suspects += r.alone;
        CHECK_OK(train_env_start(env, r.id, r.id, NULL, r.alone, &err), &err);
    }
    CHECK(lost == 4 && suspects == 1);
    for (int i = 0; i < 4; i++) CHECK_EQ(next(env).status, RAVEL_OK);
    act(env, 2, "kill");
    act(env, 1, "over");
    for (int i = 0; i < 2; i++) {
        train_env_reply r = next(env);
        CHECK_EQ(r.status, r.id == 2 ? RAVEL_E_CALLBACK : RAVEL_OK);
        CHECK_EQ(r.cost, r.id == 2 ? TRAIN_TRY : 0);
    }
    train_peer_free(env);
}

TEST(env_failures_are_sentences) {
    static const struct {
        const char *command, *says;
        double seconds;
    } cases[] = {
        {"exit 3", "exit code 3", 60},
        {"kill -9 $$", "signal 9", 60},
        {"sleep 100", "no answer came within 0.1 s", 0.1},
        {"read x; echo '{\"id\": 0, \"error\": \"oh\"}'; cat >/dev/null", "environment: oh", 60},
        {"read x; echo '{\"id\": 0, \"lost\": true}'; cat >/dev/null", "does not know the episode", 60},
        {"echo nonsense; cat >/dev/null", "not a JSON line", 60},
        {"echo '{}'; cat >/dev/null", "expected {\"id\"", 60},
        {"read x; echo '{\"id\": 0, \"reward\": \"a\"}'; cat >/dev/null", "finite number", 60},
        {"read x; echo '{\"id\": 0, \"observation\": 3}'; cat >/dev/null", "is a text", 60},
        {"exec 1>&-; cat >/dev/null", "closed its output", 60},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ravel_error err = RAVEL_ERROR_INIT;
        train_peer *env = open_env(cases[i].command, 1, cases[i].seconds);
        CHECK_OK(train_env_start(env, 0, 0, NULL, 0, &err), &err);
        train_env_reply r = next(env);
        CHECK(r.id == 0 && r.status && r.end && r.cost > 0);
        CHECK_HAS(r.observation, cases[i].says);
        train_peer_free(env);
    }
    train_peer *env = open_env("read x; echo '{\"id\": 0}'; echo '{\"id\": 0}'; cat >/dev/null", 1, 60);
    ravel_error err = RAVEL_ERROR_INIT;
    CHECK_OK(train_env_start(env, 0, 0, NULL, 0, &err), &err);
    CHECK_EQ(next(env).status, RAVEL_OK);
    train_env_reply r = next(env);
    CHECK(r.status == RAVEL_E_CALLBACK && !r.alone && !r.cost);
    CHECK_HAS(r.observation, "second answer");
    train_peer_free(env);
}

TEST(env_options_are_checked) {
    static const char *const wrong[] = {"", "http://", "https://h:x/", "http://a:1,http://:2"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        train_peer *env = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        const train_peer_options o = {.target = wrong[i], .processes = 1, .slots = 1, .seconds = 1};
        CHECK_EQ(train_env_open(&o, &env, &err), RAVEL_E_ARGUMENT);
    }
}

/* One that never answers is not started again and again, and is an error after a few times; the pauses are of all its processes. */
TEST(env_that_cannot_work_is_an_error) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_peer *env = open_env("exit 9", 2, 60);
    int64_t lost = 0;
    for (int64_t id = 0; id < 20; id++) CHECK_OK(train_env_start(env, id, id, NULL, 0, &err), &err);
    while (!train_peer_status(env, &err) && lost < 1000) {
        train_env_reply r = next(env);
        CHECK(r.status == RAVEL_E_CALLBACK);
        lost++;
        CHECK_OK(train_env_start(env, r.id, r.id, NULL, r.alone, &err), &err);
    }
    CHECK_HAS(err.message, "exit code 9");
    CHECK_HAS(err.message, "never answered");
    CHECK(lost < 100);
    train_peer_free(env);
}

/* ---- turns ---------------------------------------------------------------------------------------------- */

enum { HELD = 4096 };

typedef struct talk {
    train_text *text;
    train_turns turns;
    int32_t held[HELD];
    int64_t count;
} talk;

static void hold(talk *t, const int32_t *tokens, int64_t n) {
    RAVEL_ASSERT(t->count + n <= HELD);
    memcpy(t->held + t->count, tokens, (size_t)n * sizeof *tokens);
    t->count += n;
}

/* The tokens of a text. */
static int64_t encode(train_text *text, const char *s, int32_t *out) {
    const int32_t *tokens;
    int64_t n = 0;
    ravel_error err = RAVEL_ERROR_INIT;
    if (train_text_fragment(text, s, strlen(s), &tokens, &n, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    if (n) memcpy(out, tokens, (size_t)n * sizeof *tokens);
    return n;
}

TEST(turns_of_bytes_are_appended_as_they_are) {
    static const int32_t bos[] = {TRAIN_TOKEN_BOS}, answer[] = {'5', TRAIN_TOKEN_EOS};
    static const char begin[] = "say";
    talk t = {0};
    ravel_error err = RAVEL_ERROR_INIT;
    const int32_t *tokens;
    int64_t n;
    int differs;
    CHECK_OK(train_text_open(NULL, TRAIN_TOKENS, NULL, NULL, &t.text, &err), &err);
    train_said said = {begin, 3, "user", 0};
    CHECK_OK(train_turns_begin(t.text, &t.turns, NULL, bos, 0, &said, &tokens, &n, &err), &err);
    CHECK(n == 4 && tokens[0] == TRAIN_TOKEN_BOS && tokens[3] == 'y');
    hold(&t, tokens, n);
    hold(&t, answer, 2);
    CHECK_OK(train_turns_answer(t.text, &t.turns, t.held, t.count, 2, 1, &said, &tokens, &n, &differs, &err), &err);
    CHECK(n == 3 && tokens[0] == 's' && !differs);
    train_turns_free(&t.turns);
    CHECK_OK(train_turns_begin(t.text, &t.turns, "{\"prompt\": \"x\"}", answer, 2, &said, &tokens, &n, &err), &err);
    CHECK(n == 5 && tokens[0] == '5' && tokens[2] == 's');
    train_turns_free(&t.turns);
    train_text_free(t.text);
}

/* With PCRE2, which this tokenizer needs. */
static bool open_smol(talk *t, const char *format) {
    ravel_error err = RAVEL_ERROR_INIT;
    memset(t, 0, sizeof *t);
    ravel_status status = train_text_open("tests/golden/text/smol", 1 << 20, format, NULL, &t->text, &err);
    if (status && strstr(err.message, "PCRE2")) return false;
    if (status) check_fail(__FILE__, __LINE__, "%s", err.message);
    if (!status && train_text_missing(t->text)) return train_text_free(t->text), false;
    return status == RAVEL_OK;
}

/* Random conversations: what is held in the end is the conversation as the template writes it, if the answers are in the
 * tokenizer's own tokens; and what was drawn stays, in whichever tokens. */
TEST(turns_are_what_the_template_writes_more) {
    static const char *const answers[] = {"yes", "no, 42", "<tool>{\"a\": 1}</tool>", "spaces  ", "\xc3\xa4", "x\n\ny"};
    static const char *const says[] = {"go on", "", "result: 17\n", "<|x|> what", "?"};
    static const char row[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"Be \\\"brief\\\".\"}, "
                              "{\"role\": \"user\", \"content\": \"Hello\"}], \"answer\": 3}";
    ravel__rng rng = ravel__rng_seed(check_seed());
    talk *t = calloc(1, sizeof *t);
    for (int64_t round = 0; round < check_scale(30, 500); round++) {
        const int32_t *tokens;
        int64_t n;
        ravel_error err = RAVEL_ERROR_INIT;
        int32_t ids[512], whole[HELD], end;
        char json[8192];
        size_t used = (size_t)snprintf(
            json, sizeof json,
            "[{\"role\":\"system\",\"content\":\"Be \\\"brief\\\".\"},{\"role\":\"user\",\"content\":\"Hello\"}");
        if (!open_smol(t, "chatml")) break;
        end = ravel_tokenizer_id(train_text_tokenizer(t->text), "<|im_end|>", 10);
        CHECK_OK(train_text_prompt(t->text, row, sizeof row - 1, NULL, 0, &tokens, &n, &err), &err);
        hold(t, tokens, n);
        CHECK_OK(train_turns_begin(t->text, &t->turns, row, t->held, t->count, NULL, &tokens, &n, &err), &err);
        CHECK(tokens == t->held && n == t->count);
        for (int turn = 0; turn < 4; turn++) {
            const char *answer = answers[ravel__rng_below(&rng, 6)], *say = says[ravel__rng_below(&rng, 5)];
            int differs = 0, ended = ravel__rng_below(&rng, 4) != 0,
                split = ravel__rng_below(&rng, 8) == 0 && *answer > 0;
            int64_t count = 0;
            if (split) /* one token per byte, as far as they are: other tokens of the same text */
                for (const char *c = answer; *c; c++) {
                    char one[2] = {*c, 0};
                    count += *c > 0 ? encode(t->text, one, ids + count) : 0;
                }
            else
                count = encode(t->text, answer, ids);
            if (ended) ids[count++] = end;
            hold(t, ids, count);
            int64_t before = t->count;
            train_said said = {say, strlen(say), turn % 2 ? "user" : "system", 0};
            CHECK_OK(train_turns_answer(t->text, &t->turns, t->held, t->count, count, ended, &said, &tokens, &n,
                                        &differs, &err),
                     &err);
            CHECK(split || !differs);
            hold(t, tokens, n);
            CHECK(memcmp(t->held + before - count, ids, (size_t)count * sizeof *ids) == 0);
            char quoted[2][256];
            (void)ravel__json_quote(answer, strlen(answer), quoted[0], sizeof quoted[0]);
            (void)ravel__json_quote(say, strlen(say), quoted[1], sizeof quoted[1]);
            used += (size_t)snprintf(json + used, sizeof json - used,
                                     ",{\"role\":\"assistant\",\"content\":%s},{\"role\":\"%s\",\"content\":%s}",
                                     quoted[0], said.role, quoted[1]);
            if (split) break;
            char list[8192];
            const char *text;
            size_t bytes;
            int length = snprintf(list, sizeof list, "%s]", json);
            CHECK_OK(train_text_render(t->text, list, (size_t)length, &text, &bytes, &err), &err);
            char *copy = strndup(text, bytes);
            int64_t want = encode(t->text, copy, whole);
            CHECK_EQ(t->count, want);
            CHECK(t->count == want && memcmp(t->held, whole, (size_t)want * sizeof *whole) == 0);
            free(copy);
        }
        train_turns_free(&t->turns);
        train_text_free(t->text);
    }
    free(t);
}

/* qwen3's template drops the thoughts of earlier turns: what the model drew stays, and the turn is counted. */
TEST(turns_that_a_template_would_rewrite_are_said) {
    static const char row[] = "{\"prompt\": \"Hello\"}", answer[] = "<think>\nhm\n</think>\n\nyes";
    talk *t = calloc(1, sizeof *t);
    ravel_error err = RAVEL_ERROR_INIT;
    if (t && open_smol(t, "qwen3")) {
        const int32_t *tokens;
        int64_t n;
        int32_t ids[64], want[64];
        int differs = 0;
        CHECK_OK(train_text_prompt(t->text, row, sizeof row - 1, "Hello", 5, &tokens, &n, &err), &err);
        hold(t, tokens, n);
        CHECK_OK(train_turns_begin(t->text, &t->turns, row, t->held, t->count, NULL, &tokens, &n, &err), &err);
        int64_t count = encode(t->text, answer, ids), before = t->count;
        ids[count++] = ravel_tokenizer_id(train_text_tokenizer(t->text), "<|im_end|>", 10);
        hold(t, ids, count);
        train_said said = {"more", 4, "user", 0};
        CHECK_OK(
            train_turns_answer(t->text, &t->turns, t->held, t->count, count, 1, &said, &tokens, &n, &differs, &err),
            &err);
        CHECK_EQ(differs, 1);
        CHECK(memcmp(t->held + before, ids, (size_t)count * sizeof *ids) == 0);
        CHECK(n < 64);
        memcpy(ids, tokens, (size_t)n * sizeof *ids);
        CHECK_EQ(n, encode(t->text, "\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n", want));
        CHECK(memcmp(ids, want, (size_t)n * sizeof *want) == 0);
        train_turns_free(&t->turns);
        train_text_free(t->text);
    }
    free(t);
}

/* Several messages are one observation, and a context replaces what was said: both as the template writes them. */
TEST(turns_of_several_messages_and_of_another_conversation) {
    static const char row[] = "{\"prompt\": \"Hello\"}",
                      list[] = "[{\"role\": \"tool\", \"content\": \"1\"}, {\"role\": \"tool\", \"content\": \"2\"}]";
    static const char context[] = "[{\"role\": \"system\", \"content\": \"So far: 3.\"}]";
    talk *t = calloc(1, sizeof *t);
    ravel_error err = RAVEL_ERROR_INIT;
    if (t && open_smol(t, "chatml")) {
        const int32_t *tokens;
        int64_t n;
        int32_t ids[128], want[128];
        int differs = 0;
        train_said said = {list, sizeof list - 1, "user", 1}, more = {"go on", 5, "user", 0};
        CHECK_OK(train_text_prompt(t->text, row, sizeof row - 1, "Hello", 5, &tokens, &n, &err), &err);
        hold(t, tokens, n);
        CHECK_OK(train_turns_begin(t->text, &t->turns, row, t->held, t->count, NULL, &tokens, &n, &err), &err);
        int64_t count = encode(t->text, "yes", ids);
        ids[count++] = ravel_tokenizer_id(train_text_tokenizer(t->text), "<|im_end|>", 10);
        hold(t, ids, count);
        CHECK_OK(
            train_turns_answer(t->text, &t->turns, t->held, t->count, count, 1, &said, &tokens, &n, &differs, &err),
            &err);
        CHECK(!differs && n < 128);
        memcpy(ids, tokens, (size_t)n * sizeof *ids);
        CHECK_EQ(n, encode(t->text,
                           "\n<|im_start|>tool\n1<|im_end|>\n<|im_start|>tool\n2<|im_end|>\n<|im_start|>assistant\n",
                           want));
        CHECK(memcmp(ids, want, (size_t)n * sizeof *want) == 0);
        CHECK_OK(train_turns_replace(t->text, &t->turns, context, sizeof context - 1, &more, &tokens, &n, &err), &err);
        CHECK(n < 128);
        memcpy(ids, tokens, (size_t)n * sizeof *ids);
        CHECK_EQ(
            n,
            encode(
                t->text,
                "<|im_start|>system\nSo far: 3.<|im_end|>\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n",
                want));
        CHECK(memcmp(ids, want, (size_t)n * sizeof *want) == 0);
        CHECK(train_turns_replace(t->text, &t->turns, "[5]", 3, NULL, &tokens, &n, &err) == RAVEL_E_DATA);
        train_turns_free(&t->turns);
        train_text_free(t->text);
    }
    free(t);
    train_text *bytes = NULL;
    train_turns turns = {0};
    const int32_t *tokens;
    int64_t n;
    train_said said = {list, sizeof list - 1, "user", 1};
    CHECK_OK(train_text_open(NULL, TRAIN_TOKENS, NULL, NULL, &bytes, &err), &err);
    CHECK_OK(train_turns_replace(bytes, &turns, context, sizeof context - 1, &said, &tokens, &n, &err), &err);
    CHECK(n == 13 && tokens[0] == TRAIN_TOKEN_BOS && tokens[1] == 'S' && tokens[11] == '1' && tokens[12] == '2');
    train_turns_free(&turns);
    train_text_free(bytes);
}
