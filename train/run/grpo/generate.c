/* A generator rank: executes orders of trainer 0 until the order to stop.
 *
 *     sets                     two sets of weights: answers are drawn from the live one, refit writes the other. With
 *                              --generator-tp, of this rank's part of the model: no rank has a whole tensor
 *     order: generate          prompts -> drawing.h -> answers to the trainers. With an environment, and with --async
 *                              above 1, if answers of several batches run side by side, by episodes.h
 *     order: refit             ravel_refit_update, or a pull (pull.h), then the set that is live now
 *
 * With --rollout the rank has no model: servers answer (rl/outside/remote.h), and take the weights that the trainers publish.
 */
#include "train/run/grpo/drawing.h"
#include "train/run/grpo/episodes.h"
#include "train/run/grpo/internal.h"

#include "train/kernels/arena.h"
#include "train/model/hf/base.h"
#include "train/model/hf/lora.h"
#include "train/run/answers/weight_sets.h"
#include "train/kernels/host.h"

#include <stdlib.h>
#include <string.h>

typedef struct rank {
    const train_config *config;
    const train_hooks *hooks;
    ravel_comm *world;
    ravel_comm *tp; /* ranks that share this generator's layers; its rank 0 sends the answers. NULL: one rank */
    int32_t trainers;
    const train_kernels *kernels;
    train_device *device;
    train_generator *generator; /* NULL: `remote` */
    train_remote *remote;
    train_params *params; /* of what is published for it */
    train_base base;      /* with an adapter: the model's weights, which stay */
    train_weight_sets sets;
    ravel_refit *refit; /* collective; else the four below */
    ravel_puller *puller;
    train__meeting meeting;
    ravel_comm *self; /* of a generator of one rank */
    train_place place;
    train_text *text; /* with an environment, as the next one */
    train_prompts *questions;
    train__episodes *episodes; /* NULL: one batch at a time, one answer each */
    int64_t waited;            /* microseconds for orders, since the last answers */
    train_rollouts prompts, answers;
    train_request *requests;
    int64_t request_room;
    train__arena arena; /* of the next three */
    int32_t *tokens;    /* [slot_tokens] prompt and answer side by side */
    float *logprobs;
    int32_t *versions;
    int64_t slot_tokens;
    int64_t route_width; /* 0: routes are not wanted */
    int32_t stops[TRAIN_STOPS], stop_count;
} rank;

static ravel_status find_stops(const train_config *c, int64_t vocab, int32_t *stops, int32_t *count, ravel_error *err) {
    if (!c->grpo.stop) {
        train_stop_tokens(&c->model, stops, count);
        return RAVEL_OK;
    }
    *count = train_stops_parse(c->grpo.stop, vocab, stops, err);
    return *count > 0 ? RAVEL_OK : RAVEL_E_ARGUMENT;
}

static ravel_status hand_over(const train_config *c, ravel_comm *world, int32_t trainers, train_order of,
                              const train_rollouts *answers, ravel_error *err) {
    const ravel_mesh_options *m = &c->mesh; /* in the default order: tp, cp, dp, pp */
    int32_t stride = m->tp * m->cp, receivers = trainers / (stride * m->pp);
    RAVEL_ASSERT(receivers >= 1 && receivers * stride * m->pp == trainers);
    return train_answers_send(world, receivers, stride, of, answers, err);
}

ravel_status train__grpo_stopped(const train_hooks *hooks, ravel_comm *tp, train_order *order, ravel_error *err) {
    int32_t stopped = 0;
    ravel_status status = order->may_stop ? train_hooks_stopped(hooks, tp, &stopped, err) : RAVEL_OK;
    order->stopped = stopped;
    return status;
}

static ravel_status load_base(rank *r, ravel_error *err) {
    const train_model_choice *m = &r->config->model;
    ravel_status status = train_base_open(&r->base, r->kernels, r->device, train_generator_base_params(r->generator),
                                          m->model, m->init_seed, m->init_std, err);
    if (!status) train_generator_set_base(r->generator, r->base.frozen);
    return status;
}

static ravel_status open_episodes(rank *r, int64_t vocab, int64_t longest_prompt, ravel_error *err) {
    train__episodes_options options = {.config = r->config,
                                       .drawing = {r->generator, r->remote},
                                       .slot_tokens = r->slot_tokens,
                                       .route_width = r->route_width,
                                       .stops = r->stops,
                                       .stop_count = r->stop_count,
                                       .tp = r->tp,
                                       .hooks = r->hooks};
    ravel_status status = RAVEL_OK;
    if (train_config_has_env(r->config))
        status = train__grpo_open_prompts(r->config, vocab, longest_prompt, &r->text, &r->questions, err);
    options.prompts = r->questions;
    options.text = r->text;
    return status ? status : train__episodes_create(&options, &r->episodes, err);
}

static ravel_status open_rank(rank *r, const ravel_shape *shape, int64_t longest_prompt, ravel_error *err) {
    const train_config *c = r->config;
    train_generator_options options;
    train_config_generator(c, longest_prompt, &options);
    options.tp = r->tp;
    r->slot_tokens = options.slot_tokens;
    if (options.routes) r->route_width = shape->layers * shape->experts_active;
    RAVEL_ASSERT(r->slot_tokens > longest_prompt);
    ravel_status status = find_stops(c, shape->vocab, r->stops, &r->stop_count, err);
    TRAIN__TAKE(&r->arena, r->tokens, r->slot_tokens);
    TRAIN__TAKE(&r->arena, r->logprobs, r->slot_tokens);
    TRAIN__TAKE(&r->arena, r->versions, r->slot_tokens);
    if (!status) status = train__arena_status(&r->arena, "answers", err);
    if (!status && c->grpo.rollout) status = train_choice_kernels(&c->model, &r->kernels, err);
    if (c->grpo.rollout)
        return status ? status
                      : train_trained_params(shape, &(train_slice){.tp = 1}, &c->model.lora, NULL, &r->params, err);
    if (!status) status = train_device_open(&c->model, NULL, &r->kernels, &r->device, err);
    if (!status) status = train_generator_create(r->kernels, r->device, shape, &options, &r->generator, err);
    if (!status && c->model.lora.rank) status = load_base(r, err);
    if (!status && train_config_episodes(c)) status = open_episodes(r, shape->vocab, longest_prompt, err);
    return status;
}

static const volatile int *stop_of(const rank *r) {
    return r->hooks ? r->hooks->stop : NULL;
}

static ravel_status open_remote(rank *r, const ravel_shape *shape, ravel_error *err) {
    const train_grpo_options *o = &r->config->grpo;
    const train_remote_options options = {
        .servers = {.urls = o->rollout,
                    .key = o->rollout_key ? o->rollout_key : getenv("RAVEL_ROLLOUT_KEY"),
                    .slots = o->rollout_slots,
                    .seconds = o->rollout_seconds,
                    .wait = o->service_wait,
                    .logger = r->hooks ? r->hooks->logger : NULL},
        .model = o->rollout_model,
        .command = o->rollout_command,
        .kind = o->rollout_kind,
        .retries = o->rollout_retries,
        .temperature = o->temperature,
        .vocab = shape->vocab,
        .routes = {.layers = shape->layers, .topk = r->route_width / shape->layers, .experts = shape->experts},
        .slot_tokens = r->slot_tokens,
        .stop = stop_of(r),
        .address = r->meeting.address,
        .token = getenv("RAVEL_TOKEN"),
        .params = r->params,
        .dtype = r->meeting.dtype < 0 ? r->kernels->types.weight : r->meeting.dtype};
    return train_remote_open(&options, &r->remote, err);
}

/* Step by step with refit.c, publish_for_servers. */
static ravel_status meet_servers(rank *r, const ravel_shape *shape, int64_t longest, ravel_error *err) {
    ravel_status status = ravel_agree(r->world, RAVEL_OK, err);
    if (!status) status = ravel_agree(r->world, RAVEL_OK, err);
    if (!status) status = ravel_comm_broadcast(r->world, &r->meeting, sizeof r->meeting, RAVEL_U8, 0, err);
    if (!status) status = open_remote(r, shape, err);
    return status || !train_config_episodes(r->config) ? status : open_episodes(r, shape->vocab, longest, err);
}

/* Step by step with the trainers (refit.c). */
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
    train__episodes_free(r->episodes);
    train_prompts_free(r->questions);
    train_text_free(r->text);
    train_generator_free(r->generator);
    train_remote_close(r->remote);
    train_params_free(r->params);
    train_weight_sets_close(&r->sets);
    train_base_close(&r->base);
    train_place_close(&r->place);
    if (r->device) r->kernels->close(r->device);
    train_rollouts_free(&r->prompts);
    train_rollouts_free(&r->answers);
    ravel__release(NULL, r->requests, (size_t)r->request_room * sizeof *r->requests);
    train__arena_free(&r->arena);
    ravel_comm_free(r->tp);
}

/* ---- generating ----------------------------------------------------------------------------------------- */

/* With --correction the trainer computes its own log-probs and needs those of the distribution that was sampled
 * from. */
static ravel_status take_answer(void *user, const train_answer *answer, ravel_error *err) {
    rank *r = user;
    const float *logprob = r->config->policy.correction ? answer->kept_logprob : answer->logprob;
    const train_rollout *prompt = &r->prompts.items[answer->request];
    RAVEL_ASSERT(answer->request >= 0 && answer->request < r->prompts.count);
    RAVEL_ASSERT(prompt->length + answer->count <= r->slot_tokens);
    train_rollout item = *prompt;
    item.member = answer->sample;
    item.length = prompt->length + answer->count;
    item.ended = answer->ended;
    item.version = answer->version;
    memcpy(r->tokens, r->prompts.tokens + prompt->first, (size_t)prompt->length * sizeof *r->tokens);
    memset(r->logprobs, 0, (size_t)prompt->length * sizeof *r->logprobs);
    memset(r->versions, 0, (size_t)prompt->length * sizeof *r->versions);
    for (int64_t i = 0, at = prompt->length; i < answer->count; i++, at++) {
        r->tokens[at] = answer->tokens[i];
        r->logprobs[at] = logprob[i];
        r->versions[at] = (int32_t)train__max(answer->versions[i], 1); /* a server may not say it */
    }
    item.turns = 1;
    ravel_status status = train_rollouts_add(&r->answers, &item, r->tokens, r->logprobs, r->versions, err);
    if (status || !r->route_width) return status;
    return train_rollouts_set_routes(&r->answers, answer->routes, answer->route_count, r->route_width, err);
}

static ravel_status make_requests(rank *r, const train_order *order, const train_sampling *sampling, ravel_error *err) {
    int64_t count = r->prompts.count;
    train_request *requests = train__grown(NULL, r->requests, &r->request_room, 0, count, sizeof *requests);
    if (!requests) return ravel__no_memory(err, (size_t)count * sizeof *requests, "requests");
    r->requests = requests;
    for (int64_t i = 0; i < count; i++) {
        const train_rollout *p = &r->prompts.items[i];
        RAVEL_ASSERT(p->first >= 0 && p->first + p->length <= r->prompts.used);
        requests[i] = (train_request){.prompt = r->prompts.tokens + p->first,
                                      .count = p->length,
                                      .id = p->group,
                                      .samples = (int32_t)order->group_size,
                                      .sampling = sampling};
    }
    return RAVEL_OK;
}

/* One answer to each prompt as often as wanted. */
static ravel_status answer(rank *r, train_order *order, ravel_error *err) {
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
    ravel_status status = make_requests(r, order, &sampling, err);
    if (status || !r->prompts.count) return status;
    const train__drawing d = {r->generator, r->remote};
    order->may_stop |= r->remote != NULL; /* which may take any time */
    status = train__draw_begin(d, r->requests, r->prompts.count, err);
    while (!status && !order->stopped && train__draw_busy(d)) {
        train_polls polls = {0};
        train__draw_poll(d, &polls);
        train_polls_wait(&polls, 0.2);
        status = train__draw_advance(d, &polls, take_answer, r, err);
        train_polls_free(&polls);
        if (!status) status = train__grpo_stopped(r->hooks, r->tp, order, err);
    }
    return status;
}

static ravel_status converse(rank *r, train_order *order, ravel_error *err) {
    ravel_status status =
        train__episodes_add(r->episodes, &r->prompts, order->batch, order->group_size, order->greedy != 0, err);
    if (status || order->due == TRAIN_NOTHING_DUE) return status;
    order->may_stop |= train_config_has_env(r->config); /* which may take any time, and begins again anyway */
    return train__episodes_run(r->episodes, order, &r->answers, err);
}

/* Of the ranks that share a generator, one speaks for it. */
static int is_silent(const rank *r) {
    return r->tp && ravel_comm_rank(r->tp) > 0;
}

static ravel_status generate(rank *r, train_order *order, ravel_error *err) {
    train_rollouts_clear(&r->answers);
    ravel_status status = r->episodes ? converse(r, order, err) : answer(r, order, err);
    if (!status) train_rollouts_sort(&r->answers);
    if (status || is_silent(r) || order->due == TRAIN_NOTHING_DUE) return status;
    const train_order of = {.batch = order->due, .waited = r->waited, .stopped = order->stopped};
    r->waited = 0;
    return hand_over(r->config, r->world, r->trainers, of, &r->answers, err);
}

static ravel_status keep(rank *r, ravel_error *err) {
    train_rollouts_clear(&r->answers);
    ravel_status status = train__episodes_keep(r->episodes, &r->answers, err);
    return status || is_silent(r) ? status : train_rollouts_send(r->world, 0, &r->answers, err);
}

/* ---- orders --------------------------------------------------------------------------------------------- */

static ravel_status refit(rank *r, const train_order *order, ravel_error *err) {
    ravel_refit_report report = {.size = sizeof report};
    ravel_pull_report pulled = {.size = sizeof pulled};
    if (r->remote) /* rollouts of later batches may be under way */
        return train_remote_update(r->remote, order->version, r->episodes ? train__episodes_answer : take_answer,
                                   r->episodes ? (void *)r->episodes : r, err);
    RAVEL_ASSERT(!r->puller != !r->refit);
    ravel_status status = r->puller ? train__grpo_pull(r->puller, order->version, &pulled, err)
                                    : ravel_refit_update(r->refit, order->version, &report, err);
    if (status) return status;
    return train_weight_sets_switch(&r->sets, r->puller ? pulled.live : report.live, order->version, err);
}

static ravel_status serve_orders(rank *r, ravel_error *err) {
    train_order order = {0};
    for (;;) {
        double began = train__now();
        ravel_status status = train_order_receive(r->world, &order, &r->prompts, err);
        r->waited += (int64_t)(1e6 * (train__now() - began));
        if (status || order.kind == TRAIN_ORDER_STOP) return status;
        status = order.kind == TRAIN_ORDER_REFIT     ? refit(r, &order, err)
                 : order.kind == TRAIN_ORDER_KEEP    ? keep(r, err)
                 : order.kind == TRAIN_ORDER_RESTORE ? train__episodes_restore(r->episodes, &r->prompts, err)
                                                     : generate(r, &order, err);
        if (status) return status;
    }
}

ravel_status train_grpo_generate(const train_config *config, const ravel_shape *shape, ravel_comm *world,
                                 ravel_comm *group, const train_hooks *hooks, ravel_error *err) {
    rank r = {
        .config = config, .hooks = hooks, .world = world, .trainers = ravel_comm_size(world) - ravel_comm_size(group)};
    int32_t at = ravel_comm_rank(group), tp = config->grpo.generator_tp;
    RAVEL_ASSERT(r.trainers >= 1 && tp >= 1);
    int64_t longest_prompt = 0;
    ravel_status status = tp > 1 ? ravel_comm_split(group, at / tp, at, &r.tp, err) : RAVEL_OK;
    if (!status) status = ravel_comm_broadcast(world, &longest_prompt, 1, RAVEL_I64, 0, err);
    if (status) {
        ravel_comm_free(r.tp);
        return status;
    }
    status = ravel_agree(world, open_rank(&r, shape, longest_prompt, err), err);
    if (!status) status = config->grpo.rollout ? meet_servers(&r, shape, longest_prompt, err) : open_refit(&r, err);
    if (!status) status = serve_orders(&r, err);
    close_rank(&r);
    return status;
}
