#include "train/rl/experience.h"

#include "base/assert.h"
#include "train/kernels/arena.h"
#include "train/kernels/host.h"

#include <ravel/exchange.h>
#include <ravel/routes.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

const ravel_field train_fields[TRAIN_FIELDS] = {
#define X(NAME, fname, fkind, fdtype, type) {.name = fname, .kind = RAVEL_FIELD_##fkind, .dtype = RAVEL_##fdtype},
    TRAIN_FIELD_LIST(X)
#undef X
};

void train_experience_free(train_experience *x) {
    ravel__release(NULL, x->block, x->block_bytes);
    *x = (train_experience){0};
}

/* ---- room ----------------------------------------------------------------------------------------------- */

/* Where the arrays of samples and of tokens are in the block; with base NULL it only counts the bytes. */
static size_t place(train_experience *x, int64_t room, int64_t token_room, char *base) {
    train__cut cut = {.base = base};
    x->offsets = train__cut_take(&cut, room + 1, sizeof *x->offsets);
    x->groups = train__cut_take(&cut, room, sizeof *x->groups);
    x->responses = train__cut_take(&cut, room, sizeof *x->responses);
    x->staleness = train__cut_take(&cut, room, sizeof *x->staleness);
    x->rewards = train__cut_take(&cut, room, sizeof *x->rewards);
    x->advantages = train__cut_take(&cut, room, sizeof *x->advantages);
    x->once_rewards = train__cut_take(&cut, room, sizeof *x->once_rewards);
    x->once_groups = train__cut_take(&cut, room, sizeof *x->once_groups);
    x->scratch = train__cut_take(&cut, 2 * room, sizeof *x->scratch);
    x->advantage = train__cut_take(&cut, room, sizeof *x->advantage);
    x->update = train__cut_take(&cut, room, sizeof *x->update);
    x->truncated = train__cut_take(&cut, room, sizeof *x->truncated);
    x->last = train__cut_take(&cut, room, sizeof *x->last);
    x->ids = train__cut_take(&cut, token_room, sizeof *x->ids);
    x->generator = train__cut_take(&cut, token_room, sizeof *x->generator);
    x->taught = train__cut_take(&cut, x->with_teacher ? token_room : 0, sizeof *x->taught);
    x->mask = train__cut_take(&cut, token_room, sizeof *x->mask);
    x->routes = train__cut_take(&cut, token_room * x->route_width, sizeof *x->routes);
    return cut.used;
}

/* A block for these and some more, in place of the old one, whose content is not kept. */
static ravel_status make_room(train_experience *x, int64_t count, int64_t tokens, ravel_error *err) {
    if (x->block && count <= x->room && tokens <= x->token_room) return RAVEL_OK;
    int64_t room = train__max(x->room, count + count / 4 + 64);
    int64_t token_room = train__max(x->token_room, tokens + tokens / 4 + 64);
    RAVEL_ASSERT(count >= 0 && tokens >= 0);
    int64_t width = x->route_width;
    int32_t with_teacher = x->with_teacher;
    train_experience_free(x);
    x->route_width = width;
    x->with_teacher = with_teacher;
    size_t bytes = place(x, room, token_room, NULL);
    x->block = ravel__alloc(NULL, bytes);
    if (!x->block) return ravel__no_memory(err, bytes, "samples to learn from");
    x->block_bytes = place(x, room, token_room, x->block);
    RAVEL_ASSERT(x->block_bytes == bytes);
    x->room = room;
    x->token_room = token_room;
    return RAVEL_OK;
}

/* Versions between the weights that drew a token and those that will be trained, in the mean over what was drawn. */
static double staleness_of(const train_rollouts *rollouts, const train_rollout *r, int64_t version) {
    int64_t drawn = 0, sum = 0;
    for (int64_t t = r->first; t < r->first + r->length; t++) {
        if (rollouts->versions[t] == 0) continue;
        drawn++;
        sum += version - rollouts->versions[t];
    }
    return drawn ? (double)sum / (double)drawn : 0;
}

/* -1 where the list has none. */
static void copy_routes(train_experience *x, const train_rollouts *from, const train_rollout *r, int64_t at) {
    int64_t width = x->route_width;
    for (int64_t i = 0; i < r->length * width; i++)
        x->routes[at * width + i] = from->width == width ? from->routes[r->first * width + i] : -1;
}

ravel_status train_experience_load(train_experience *x, const train_rollouts *rollouts, int64_t version,
                                   ravel_error *err) {
    RAVEL_ASSERT(rollouts->count >= 0 && version >= 0);
    int64_t tokens = 0;
    for (int64_t i = 0; i < rollouts->count; i++) tokens += rollouts->items[i].length;
    ravel_status status = make_room(x, rollouts->count, tokens, err);
    if (status) return status;
    x->count = rollouts->count;
    x->rollouts = 0;
    x->tokens = tokens;
    RAVEL_ASSERT(x->count <= x->room && tokens <= x->token_room);
    x->offsets[0] = 0;
    for (int64_t i = 0; i < rollouts->count; i++) {
        const train_rollout *r = &rollouts->items[i];
        int64_t at = x->offsets[i];
        size_t n = (size_t)r->length;
        RAVEL_ASSERT(r->prompt >= 0 && r->prompt <= r->length && r->first + r->length <= rollouts->used);
        memcpy(x->ids + at, rollouts->tokens + r->first, n * sizeof *x->ids);
        memcpy(x->generator + at, rollouts->logprobs + r->first, n * sizeof *x->generator);
        for (int64_t t = 0; t < r->length; t++) x->mask[at + t] = rollouts->versions[r->first + t] > 0;
        copy_routes(x, rollouts, r, at);
        x->offsets[i + 1] = at + r->length;
        x->groups[i] = r->group;
        x->responses[i] = train_rollout_drawn(rollouts, r);
        x->truncated[i] = !r->ended;
        x->last[i] = i + 1 == rollouts->count || r[1].part == 0;
        x->staleness[i] = staleness_of(rollouts, r, version);
        x->rewards[i] = r->reward;
        x->advantages[i] = 0;
        x->advantage[i] = 0;
        x->update[i] = 0;
    }
    RAVEL_ASSERT(x->offsets[x->count] == tokens);
    return RAVEL_OK;
}

/* ---- rewards -------------------------------------------------------------------------------------------- */

/* Tokens of an answer without its end token. */
static int64_t answer_tokens(const train_rollout *r) {
    RAVEL_ASSERT(r->length - r->prompt >= (r->ended != 0));
    return r->length - r->prompt - (r->ended != 0);
}

/* Nobody answered it. */
static int is_empty(const train_rollout *r) {
    return r->length == r->prompt;
}

/* Right is a reward of 1; less is partly right. */
static double score_by_answer(const train_rollouts *rollouts, const train_rollout *r, const train_scorer *scorer,
                              char *room) {
    train_question question = {{0}, {0}};
    const int32_t *response = rollouts->tokens + r->first + r->prompt;
    RAVEL_ASSERT(r->first >= 0 && r->first + r->length <= rollouts->used);
    size_t want, bytes = train_text_decode(scorer->text, response, answer_tokens(r), room, SIZE_MAX);
    const char *answer = train_prompts_answer(scorer->prompts, r->group, &question, &want);
    if (!answer || want >= sizeof question.answer)
        return answer && r->ended && bytes == want && memcmp(room, answer, want) == 0;
    memmove(question.answer, answer, want + 1);
    return train_task_score(&question, room, bytes, (int)r->ended, scorer->partial);
}

/* Adds what is measured here to the score, and hands it to the rollout. */
static void settle_score(const train_rollouts *rollouts, train_rollout *r, const train_scorer *scorer, train_score *s,
                         char *room) {
    const train_mix *mix = scorer->mix;
    double exact = NAN;
    for (int32_t i = 0; i < mix->count; i++) {
        double *value = &s->values[i];
        if (mix->parts[i].kind == TRAIN_MIX_EXACT) *value = exact = score_by_answer(rollouts, r, scorer, room);
        if (mix->parts[i].kind == TRAIN_MIX_ENDED) *value = (double)r->ended;
        if (mix->parts[i].kind == TRAIN_MIX_LENGTH)
            *value = (double)(r->length - r->prompt) / (double)scorer->max_tokens;
        if (scorer->sums) scorer->sums->values[i] += *value;
    }
    if (scorer->sums) scorer->sums->count++;
    r->reward = train_mix_sum(mix, s->values);
    r->accuracy = s->judged ? s->accuracy : isnan(exact) ? r->reward : exact == 1;
    r->scored = 1;
}

/* A rollout as the command gets it; *room moves behind its texts. */
static train_rollout_text describe(const train_rollouts *rollouts, const train_rollout *r, const train_scorer *scorer,
                                   train_question *question, char **room) {
    const int32_t *prompt = rollouts->tokens + r->first, *response = prompt + r->prompt;
    RAVEL_ASSERT(r->first >= 0 && r->first + r->length <= rollouts->used);
    train_rollout_text t = {.prompt_ids = prompt,
                            .prompt_tokens = r->prompt,
                            .response_ids = response,
                            .tokens = r->length - r->prompt,
                            .ended = (int32_t)r->ended};
    t.prompt = *room;
    t.prompt_bytes = train_text_decode(scorer->text, prompt, r->prompt, *room, SIZE_MAX);
    *room += t.prompt_bytes + 1;
    t.response = *room;
    t.response_bytes = train_text_decode(scorer->text, response, answer_tokens(r), *room, SIZE_MAX);
    *room += t.response_bytes + 1;
    t.answer = train_prompts_answer(scorer->prompts, r->group, question, &t.answer_bytes);
    t.row = train_prompts_line(scorer->prompts, r->group);
    return t;
}

static ravel_status score_by_command(train_rollouts *rollouts, const train_scorer *scorer, char *room, ravel_error *why,
                                     ravel_error *err) {
    char *start = room;
    size_t each = sizeof(train_rollout_text) + sizeof(train_question) + sizeof(train_score) + sizeof(int64_t);
    size_t bytes = ((size_t)rollouts->count + 1) * each;
    train_rollout_text *texts = ravel__alloc(NULL, bytes);
    if (!texts) return ravel__no_memory(err, bytes, "texts to score");
    train_score *scores = (train_score *)(void *)(texts + rollouts->count);
    int64_t *items = (int64_t *)(void *)(scores + rollouts->count), count = 0;
    train_question *questions = (train_question *)(void *)(items + rollouts->count);
    for (int64_t i = 0; i < rollouts->count; i++) {
        if (rollouts->items[i].scored || is_empty(&rollouts->items[i])) continue;
        texts[count] = describe(rollouts, &rollouts->items[i], scorer, &questions[count], &room);
        scores[count] = (train_score){.reward = NAN};
        items[count++] = i;
    }
    RAVEL_ASSERT((char *)(questions + rollouts->count) <= (char *)texts + bytes);
    ravel_status status = train_reward_score(scorer->command, texts, count, scores, why, err);
    for (int64_t k = 0; k < count; k++) /* the texts in `room` are not needed any more */
        if (!isnan(scores[k].reward)) settle_score(rollouts, &rollouts->items[items[k]], scorer, &scores[k], start);
    ravel__release(NULL, texts, bytes);
    return status;
}

/* Room for all prompts and answers as text, with a NUL each. */
static size_t text_bytes(const train_rollouts *rollouts, const train_text *text) {
    size_t bytes = 1;
    for (int64_t i = 0; i < rollouts->count; i++) {
        const train_rollout *r = &rollouts->items[i];
        bytes += train_text_decode(text, rollouts->tokens + r->first, r->prompt, NULL, 0) + 1;
        bytes += train_text_decode(text, rollouts->tokens + r->first + r->prompt, r->length - r->prompt, NULL, 0) + 1;
    }
    return bytes;
}

ravel_status train_rollouts_score(train_rollouts *rollouts, const train_scorer *scorer, int64_t *dropped,
                                  ravel_error *why, ravel_error *err) {
    size_t bytes = text_bytes(rollouts, scorer->text);
    char *room = ravel__alloc(NULL, bytes);
    if (!room) return ravel__no_memory(err, bytes, "texts to score");
    ravel_status status = RAVEL_OK;
    int64_t kept = 0;
    if (scorer->command) status = score_by_command(rollouts, scorer, room, why, err);
    for (int64_t i = 0; i < rollouts->count && !scorer->command && !scorer->env; i++) {
        train_rollout *r = &rollouts->items[i];
        train_score score = {0};
        if (!r->scored && !is_empty(r)) settle_score(rollouts, r, scorer, &score, room);
    }
    ravel__release(NULL, room, bytes);
    for (int64_t i = 0; i < rollouts->count && !status; i++)
        if (rollouts->items[i].scored) rollouts->items[kept++] = rollouts->items[i];
    if (status) return status;
    if (kept < rollouts->count && !why->status)
        (void)ravel_error_set(why, RAVEL_E_CALLBACK, "%s (see the warnings above)",
                              scorer->env ? "the environment was lost" : "no server answered the prompts");
    *dropped = rollouts->count - kept;
    rollouts->count = kept;
    return RAVEL_OK;
}

void train_experience_length_rules(train_experience *x, const train_scoring *scoring, const train_policy *policy) {
    RAVEL_ASSERT(scoring->max_tokens > 0);
    for (int64_t i = 0; i < x->count; i++) {
        x->rewards[i] += train_overlong(policy, x->responses[i], scoring->max_tokens);
        if (scoring->overlong_filter && x->truncated[i])
            memset(x->mask + x->offsets[i], 0, (size_t)(x->offsets[i + 1] - x->offsets[i]));
    }
}

void train_experience_advantages(train_experience *x, const train_policy *policy) {
    int64_t n = 0;
    for (int64_t i = 0; i < x->count; i++) {
        if (!x->last[i]) continue;
        x->once_rewards[n] = x->rewards[i];
        x->once_groups[n++] = x->groups[i];
    }
    x->rollouts = n;
    ravel_status status =
        ravel_advantages(policy->advantage, x->once_rewards, x->once_groups, n, x->advantages, x->scratch, NULL);
    RAVEL_ASSERT(!status && x->count <= x->room); /* the kind is of the options' table */
    (void)status;
    for (int64_t i = x->count; i-- > 0;) { /* each part has those of its rollout */
        n -= x->last[i];
        RAVEL_ASSERT(n >= 0 && n <= i);
        x->rewards[i] = x->once_rewards[n];
        x->advantages[i] = x->advantages[n];
        x->advantage[i] = (float)x->advantages[i];
    }
    for (int64_t i = 1; i < x->count; i++) RAVEL_ASSERT(x->offsets[i] > x->offsets[i - 1]);
}

void train_experience_forget_advantages(train_experience *x) {
    for (int64_t i = 0; i < x->count; i++) x->advantage[i] = 0, x->advantages[i] = 0;
}

/* ---- updates -------------------------------------------------------------------------------------------- */

static int by_number(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Every rank takes part in every step, also one without memory. */
ravel_status train_groups_gather(ravel_comm *comm, const int64_t *mine, int64_t count, int64_t **sorted, int64_t *total,
                                 ravel_error *err) {
    size_t ranks = (size_t)ravel_comm_size(comm), bytes = ranks * sizeof(int64_t);
    RAVEL_ASSERT(count >= 0 && (mine || count == 0));
    int64_t *counts = ravel__alloc(NULL, bytes), sum = 0, *all = NULL;
    ravel_status status = counts ? RAVEL_OK : ravel__no_memory(err, bytes, "groups of a batch");
    *sorted = NULL, *total = 0;
    status = ravel_agree(comm, status, err);
    if (!counts) return status;
    if (!status) status = ravel_gather_counts(comm, count, counts, err);
    for (size_t r = 0; r < ranks && !status; r++) sum += counts[r];
    size_t all_bytes = (size_t)sum * sizeof(int64_t);
    if (!status && sum > 0) {
        all = ravel__alloc(NULL, all_bytes);
        status = ravel_agree(comm, all ? RAVEL_OK : ravel__no_memory(err, all_bytes, "groups of a batch"), err);
        if (all && !status) status = ravel_gather(comm, mine, counts, 1, all, err);
        if (all && !status) qsort(all, (size_t)sum, sizeof *all, by_number);
    }
    ravel__release(NULL, counts, bytes);
    if (!status) {
        *sorted = all, *total = sum;
        return RAVEL_OK;
    }
    ravel__release(NULL, all, all_bytes);
    return status;
}

/* How many of the sorted numbers are smaller. */
static int64_t smaller_than(const int64_t *sorted, int64_t count, int64_t number) {
    int64_t first = 0;
    while (count > 0) {
        int64_t half = count / 2;
        int right = sorted[first + half] < number;
        first += right ? half + 1 : 0;
        count = right ? count - half - 1 : half;
    }
    RAVEL_ASSERT(count == 0);
    return first;
}

/* `all`: the groups of all samples of the batch, sorted. */
static void cut_into_updates(train_experience *x, const int64_t *all, int64_t total, int32_t updates) {
    int64_t in_group = 0;
    RAVEL_ASSERT(x->count == 0 || total > 0);
    for (int64_t i = 0; i < x->count; i++) {
        in_group = i > 0 && x->groups[i] == x->groups[i - 1] ? in_group + 1 : 0;
        int64_t place = smaller_than(all, total, x->groups[i]) + in_group;
        x->update[i] = (int32_t)((2 * place + 1) * updates / (2 * total));
        RAVEL_ASSERT(place < total && x->update[i] < updates);
    }
}

ravel_status train_experience_cut(train_experience *x, ravel_comm *comm, int32_t updates, ravel_error *err) {
    int64_t *all = NULL, total = 0;
    if (updates == 1) return RAVEL_OK;
    RAVEL_ASSERT(updates > 1 && x->count <= x->room);
    ravel_status status = train_groups_gather(comm, x->groups, x->count, &all, &total, err);
    if (!status) cut_into_updates(x, all, total, updates);
    ravel__release(NULL, all, (size_t)total * sizeof *all);
    return status;
}

/* ---- samples -------------------------------------------------------------------------------------------- */

int64_t train_fields_list(int32_t with_teacher, int64_t route_width, ravel_field *fields) {
    int64_t count = TRAIN_FIELDS;
    memcpy(fields, train_fields, sizeof train_fields);
    if (with_teacher) {
        fields[count] = fields[TRAIN_FIELD_GENERATOR];
        fields[count++].name = "teacher";
    }
    if (route_width)
        fields[count++] = (ravel_field){
            .name = RAVEL_ROUTES_FIELD, .kind = RAVEL_FIELD_TOKEN, .dtype = RAVEL_I16, .width = route_width, .pad = -1};
    return count;
}

const ravel_samples *train_experience_samples(train_experience *x) {
    const void *further[] = {x->with_teacher ? (const void *)x->taught : (const void *)x->routes, x->routes};
    const void *data[] = {x->ids, x->mask, x->generator, x->advantage, x->update, further[0], further[1]};
    _Static_assert(sizeof data / sizeof *data == TRAIN_FIELDS + 2, "an array for each field");
    RAVEL_ASSERT(x->count == 0 || x->offsets[x->count] == x->tokens);
    int64_t fields = train_fields_list(x->with_teacher, x->route_width, x->fields);
    for (int64_t i = 0; i < fields; i++) x->fields[i].data = data[i];
    x->samples = (ravel_samples){.ragged = {.size = sizeof(ravel_ragged),
                                            .count = x->count,
                                            .offsets = x->offsets,
                                            .fields = x->fields,
                                            .field_count = fields}};
    return &x->samples;
}
