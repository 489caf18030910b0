/* A generator rank: executes orders of trainer 0 until the order to stop.
 *
 *     sets                     two sets of weights: answers are drawn from the live one, refit writes the other. With
 *                              --generator-tp, of this rank's part of the model: no rank has a whole tensor
 *     order: generate          prompts -> train_generator_run -> answers to the trainers
 *     order: refit             ravel_refit_update, or a pull (grpo_pull.h), then the set that is live now
 */
#include "train/run/grpo_internal.h"

#include "train/kernels/arena.h"
#include "train/run/weight_sets.h"
#include "train/kernels/host.h"

#include <stdlib.h>
#include <string.h>

typedef struct rank {
    const train_config *config;
    ravel_comm *world;
    ravel_comm *tp; /* ranks that share this generator's layers; its rank 0 sends the answers. NULL: one rank */
    int32_t trainers;
    const train_kernels *kernels;
    train_device *device;
    train_generator *generator;
    train_weight_sets sets;
    ravel_refit *refit; /* collective; else the four below */
    ravel_puller *puller;
    train__meeting meeting;
    ravel_comm *self; /* of a generator of one rank */
    train_place place;
    train_rollouts prompts, answers;
    train_request *requests;
    int64_t request_room;
    train__arena arena; /* of the next two */
    int32_t *tokens;    /* [slot_tokens] prompt and answer side by side */
    float *logprobs;
    int64_t slot_tokens;
    int32_t stops[TRAIN_STOPS], stop_count;
} rank;

/* --stop-ids as a list of tokens, or what the model's folder says. */
static ravel_status read_stops(rank *r, int64_t vocab, ravel_error *err) {
    const char *text = r->config->grpo.stop;
    if (!text) {
        train_stop_tokens(&r->config->model, r->stops, &r->stop_count);
        return RAVEL_OK;
    }
    r->stop_count = train_stops_parse(text, vocab, r->stops, err);
    return r->stop_count > 0 ? RAVEL_OK : RAVEL_E_ARGUMENT;
}

static ravel_status open_rank(rank *r, const ravel_shape *shape, int64_t longest_prompt, ravel_error *err) {
    const train_config *c = r->config;
    train_generator_options options;
    train_generator_options_default(&options);
    options.slots = c->grpo.slots;
    options.tp = r->tp;
    options.graphs = c->model.graphs;
    r->slot_tokens = options.slot_tokens = longest_prompt + c->grpo.scoring.max_tokens;
    TRAIN_ASSERT(longest_prompt > 0 && r->slot_tokens > longest_prompt);
    ravel_status status = read_stops(r, shape->vocab, err);
    if (!status) status = train_device_open(&c->model, NULL, &r->kernels, &r->device, err);
    if (!status) status = train_generator_create(r->kernels, r->device, shape, &options, &r->generator, err);
    TRAIN__TAKE(&r->arena, r->tokens, r->slot_tokens);
    TRAIN__TAKE(&r->arena, r->logprobs, r->slot_tokens);
    return status ? status : train__arena_status(&r->arena, "answers", err);
}

/* Step by step with the trainers (grpo.c). */
static ravel_status open_refit(rank *r, ravel_error *err) {
    const ravel_refit_options options = train__grpo_buffers(r->config);
    int pulls = 0;
    ravel_status status =
        train__grpo_way(r->config, r->kernels, r->config->model.gpu, r->world, &r->place, &pulls, err);
    if (status) return status;
    status = train_weight_sets_open(&r->sets, r->kernels, r->device, &r->place, r->generator, err);
    if (!status && pulls && !r->tp) status = ravel_comm_self(NULL, &r->self, err);
    status = ravel_agree(r->world, status, err);
    if (status) return status;
    if (pulls)
        return train__grpo_connect(r->world, r->tp ? r->tp : r->self, &r->sets.sink, &r->meeting, &r->puller, err);
    return ravel_refit_create(r->world, NULL, &r->sets.sink, &options, &r->refit, err);
}

static void close_rank(rank *r) {
    ravel_refit_free(r->refit);
    ravel_puller_free(r->puller);
    ravel_comm_free(r->self);
    train_generator_free(r->generator);
    train_weight_sets_close(&r->sets);
    train_place_close(&r->place);
    if (r->device) r->kernels->close(r->device);
    train_rollouts_free(&r->prompts);
    train_rollouts_free(&r->answers);
    train__release(NULL, r->requests, (size_t)r->request_room * sizeof *r->requests);
    train__arena_free(&r->arena);
    ravel_comm_free(r->tp);
}

/* ---- generating ----------------------------------------------------------------------------------------- */

/* With --tis the trainer computes its own log-probs and needs those of the distribution that was sampled from. */
static ravel_status take_answer(void *user, const train_answer *answer, ravel_error *err) {
    rank *r = user;
    const float *logprob = r->config->policy.tis > 0 ? answer->kept_logprob : answer->logprob;
    const train_rollout *prompt = &r->prompts.items[answer->request];
    TRAIN_ASSERT(answer->request >= 0 && answer->request < r->prompts.count);
    TRAIN_ASSERT(prompt->length + answer->count <= r->slot_tokens);
    train_rollout item = *prompt;
    item.member = answer->sample;
    item.length = prompt->length + answer->count;
    item.ended = answer->ended;
    item.version = answer->version;
    memcpy(r->tokens, r->prompts.tokens + prompt->first, (size_t)prompt->length * sizeof *r->tokens);
    memcpy(r->tokens + prompt->length, answer->tokens, (size_t)answer->count * sizeof *r->tokens);
    memset(r->logprobs, 0, (size_t)prompt->length * sizeof *r->logprobs);
    memcpy(r->logprobs + prompt->length, logprob, (size_t)answer->count * sizeof *r->logprobs);
    return train_rollouts_add(&r->answers, &item, r->tokens, r->logprobs, err);
}

static ravel_status make_requests(rank *r, const train_order *order, const train_sampling *sampling, ravel_error *err) {
    int64_t count = r->prompts.count;
    train_request *requests = train__grown(NULL, r->requests, &r->request_room, 0, count, sizeof *requests);
    if (!requests) return train__no_memory(err, (size_t)count * sizeof *requests, "requests");
    r->requests = requests;
    for (int64_t i = 0; i < count; i++) {
        const train_rollout *p = &r->prompts.items[i];
        TRAIN_ASSERT(p->first >= 0 && p->first + p->length <= r->prompts.used);
        requests[i] = (train_request){.prompt = r->prompts.tokens + p->first,
                                      .count = p->length,
                                      .id = p->group,
                                      .samples = (int32_t)order->group_size,
                                      .sampling = sampling};
    }
    return RAVEL_OK;
}

static ravel_status generate(rank *r, const train_order *order, ravel_error *err) {
    const train_grpo_options *o = &r->config->grpo;
    train_sampling sampling;
    train_sampling_default(&sampling);
    sampling.temperature = order->greedy ? 0 : o->temperature;
    sampling.top_p = o->top_p;
    sampling.top_k = o->top_k;
    sampling.max_tokens = o->scoring.max_tokens;
    sampling.seed = r->config->run.seed;
    sampling.stop = r->stops;
    sampling.stops = r->stop_count;
    train_rollouts_clear(&r->answers);
    ravel_status status = make_requests(r, order, &sampling, err);
    if (!status && r->prompts.count)
        status = train_generator_run(r->generator, r->requests, r->prompts.count, take_answer, r, err);
    if (!status) train_rollouts_sort(&r->answers);
    if (status || (r->tp && ravel_comm_rank(r->tp) > 0)) return status;
    const ravel_mesh_options *m = &r->config->mesh; /* in the default order: tp, cp, dp, pp */
    int32_t stride = m->tp * m->cp, receivers = r->trainers / (stride * m->pp);
    TRAIN_ASSERT(receivers >= 1 && receivers * stride * m->pp == r->trainers);
    return train_answers_send(r->world, receivers, stride, order->batch, &r->answers, err);
}

/* ---- orders --------------------------------------------------------------------------------------------- */

static ravel_status refit(rank *r, const train_order *order, ravel_error *err) {
    ravel_refit_report report = {.size = sizeof report};
    ravel_pull_report pulled = {.size = sizeof pulled};
    TRAIN_ASSERT(!r->puller != !r->refit);
    ravel_status status = r->puller ? train__grpo_pull(r->puller, order->version, &pulled, err)
                                    : ravel_refit_update(r->refit, order->version, &report, err);
    if (status) return status;
    return train_weight_sets_switch(&r->sets, r->puller ? pulled.live : report.live, order->version, err);
}

static ravel_status serve_orders(rank *r, ravel_error *err) {
    train_order order = {0};
    for (;;) {
        ravel_status status = train_order_receive(r->world, &order, &r->prompts, err);
        if (status || order.kind == TRAIN_ORDER_STOP) return status;
        status = order.kind == TRAIN_ORDER_REFIT ? refit(r, &order, err) : generate(r, &order, err);
        if (status) return status;
    }
}

ravel_status train_grpo_generate(const train_config *config, const ravel_shape *shape, ravel_comm *world,
                                 ravel_comm *group, ravel_error *err) {
    rank r = {.config = config, .world = world, .trainers = ravel_comm_size(world) - ravel_comm_size(group)};
    int32_t at = ravel_comm_rank(group), tp = config->grpo.generator_tp;
    TRAIN_ASSERT(r.trainers >= 1 && tp >= 1);
    int64_t longest_prompt = 0;
    ravel_status status = tp > 1 ? ravel_comm_split(group, at / tp, at, &r.tp, err) : RAVEL_OK;
    if (!status) status = ravel_comm_broadcast(world, &longest_prompt, 1, RAVEL_I64, 0, err);
    if (status) {
        ravel_comm_free(r.tp);
        return status;
    }
    status = ravel_agree(world, open_rank(&r, shape, longest_prompt, err), err);
    if (!status) status = open_refit(&r, err);
    if (!status) status = serve_orders(&r, err);
    close_rank(&r);
    return status;
}
