/* One answer per batch to read: a line of samples.jsonl in the run folder, which ravel report shows, and every
 * --show-every batches a line on the terminal.
 *
 *     {"step": 40, "reward": 1, "prompt": "37+58=", "response": "95", "answer": "95"}
 *
 * "step" counts the updates before the answer; "answer" is the right one, if it is known. Long texts are cut. */
#include "train/run/grpo/internal.h"

#include "base/assert.h"
#include "train/kernels/host.h"

#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { TEXT = 2000, QUOTED = 6 * TEXT + 16 }; /* a byte is at most six when quoted */

/* Texts as JSON strings, without control characters. */
typedef struct sample {
    char prompt[QUOTED], response[QUOTED], answer[QUOTED];
    double reward;
} sample;

static void quote_tokens(const train__grpo *g, const int32_t *tokens, int64_t count, char out[QUOTED]) {
    char text[TEXT];
    size_t bytes = train_text_decode(g->text, tokens, count, text, sizeof text);
    (void)ravel__json_quote(text, train__min(bytes, sizeof text - 1), out, QUOTED);
}

/* ", \"answer\": ..." or nothing. */
static void quote_answer(const train__grpo *g, int64_t question, char out[QUOTED]) {
    static const char key[] = ", \"answer\": ";
    train_question room;
    size_t bytes;
    const char *answer = train_prompts_answer(g->prompts, question, &room, &bytes);
    out[0] = '\0';
    if (!answer) return;
    memcpy(out, key, sizeof key);
    (void)ravel__json_quote(answer, train__min(bytes, TEXT), out + sizeof key - 1, QUOTED - sizeof key + 1);
}

/* Nothing depends on this file, so write errors are ignored; a full disk is reported by the next checkpoint. */
static void write_line(const train__grpo *g, const sample *s) {
    char path[TRAIN_PATH];
    FILE *f = train_path_join(path, g->run.folder, "samples.jsonl", NULL) ? NULL : fopen(path, "a");
    if (!f) return;
    char reward[32] = "null"; /* JSON has no NAN */
    if (isfinite(s->reward)) (void)snprintf(reward, sizeof reward, "%.9g", s->reward);
    (void)fprintf(f, "{\"step\": %lld, \"reward\": %s, \"prompt\": %s, \"response\": %s%s}\n",
                  (long long)g->run.state.step, reward, s->prompt, s->response, s->answer);
    (void)fclose(f);
}

void train__grpo_show_sample(const train__grpo *g) {
    int64_t every = g->config->grpo.show_every, batch = g->run.state.batch;
    if (g->rank != 0 || g->answers.count == 0) return;
    const train_rollout *r = &g->answers.items[batch % g->answers.count];
    RAVEL_ASSERT(r->prompt <= r->length && r->first + r->length <= g->answers.used);
    const int32_t *tokens = g->answers.tokens + r->first;
    sample *s = ravel__alloc(NULL, sizeof *s);
    if (!s) return;
    s->reward = r->reward;
    quote_tokens(g, tokens, r->prompt, s->prompt);
    quote_tokens(g, tokens + r->prompt, r->length - r->prompt, s->response);
    quote_answer(g, r->group, s->answer);
    write_line(g, s);
    if (every > 0 && batch % every == 0)
        ravel__log(g->run.hooks.logger, RAVEL_LOG_INFO, "update %lld, reward %g: %.400s -> %.500s",
                   (long long)g->run.state.step, s->reward, s->prompt, s->response);
    ravel__release(NULL, s, sizeof *s);
}
