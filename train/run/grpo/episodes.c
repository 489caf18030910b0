#include "train/run/grpo/seats.h"

#include "train/run/grpo/internal.h"

#include "train/kernels/host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARNINGS = 20 }; /* sentences about lost environments per run */

static const ravel_logger *logger_of(const train__episodes *e) {
    return e->options.hooks ? e->options.hooks->logger : NULL;
}

static int64_t id_of(const seat *s) {
    return s->item.group * 65536 + s->item.member; /* group-size is 65536 at most */
}

/* ---- the end of a rollout ------------------------------------------------------------------------------- */

static ravel_status leave(train__episodes *e, seat *s, ravel_error *err) {
    if (s->used == 0) { /* it never had a prompt; a rollout has a token */
        s->tokens[s->used] = s->versions[s->used] = 0;
        s->logprobs[s->used++] = 0;
    }
    s->item.length = s->used;
    if (!s->item.turns) s->item.prompt = s->used;
    RAVEL_ASSERT(s->item.prompt >= 0 && s->item.prompt <= s->used && s->used <= e->options.slot_tokens);
    s->item.progress = TRAIN_ROLLOUT_OVER;
    train__seat_settle(e, s, 0);
    s->item.turns -= s->parted;
    ravel_status status = train__seat_copy(e, s, &s->item, &e->done, err);
    s->place = FREE;
    e->taken--;
    e->due_left -= s->item.batch == e->due;
    return status;
}

static void warn(train__episodes *e, const seat *s, const char *why) {
    if ((e->has_env && !e->env) || e->warnings++ >= WARNINGS) return;
    ravel__log(logger_of(e), RAVEL_LOG_WARN, "question %lld, rollout %lld: %.300s%s", (long long)s->item.group,
               (long long)s->item.member, why, e->warnings == WARNINGS ? " (further ones are only counted)" : "");
}

/* It comes out without a score. */
static ravel_status drop(train__episodes *e, seat *s, const char *why, ravel_error *err) {
    if (why) warn(e, s, why);
    s->item.scored = 0;
    s->item.ended = 0;
    return leave(e, s, err);
}

static ravel_status finish(train__episodes *e, seat *s, int ended, ravel_error *err) {
    s->item.ended = ended;
    if (e->has_env) {
        s->item.scored = 1;
        if (isnan(s->item.accuracy)) s->item.accuracy = s->item.reward;
    }
    return leave(e, s, err);
}

/* ---- its beginning -------------------------------------------------------------------------------------- */

static void append_given(seat *s, const int32_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count; i++, s->used++) {
        s->tokens[s->used] = tokens[i];
        s->logprobs[s->used] = 0;
        s->versions[s->used] = 0;
    }
}

/* With an environment, its start is asked for; else the prompt is the question. */
static ravel_status begin(train__episodes *e, seat *s, ravel_error *err) {
    const int32_t *question = e->questions.tokens + s->item.first;
    if (s->item.retried)
        for (int64_t i = s->item.prompt; i < s->used; i++) s->item.wasted += s->versions[i] > 0;
    train__seat_settle(e, s, 1);
    train_turns_free(&s->turns);
    s->routed = 0;
    s->used = s->item.turns = s->item.prompt = s->item.differs = s->item.drawn = 0;
    s->item.reward = 0;
    s->item.accuracy = NAN;
    s->begun = s->lost = 0;
    if (!e->has_env) {
        append_given(s, question, s->question);
        s->item.prompt = s->question;
        s->place = READY;
        return RAVEL_OK;
    }
    s->place = AT_ENV;
    if (!e->env) return RAVEL_OK;
    return train_env_start(e->env, id_of(s), s->item.group, train_prompts_line(e->options.prompts, s->item.group),
                           s->alone, err);
}

/* The next question to begin: of the batch that is due, or else in their order. */
static train_rollout *next_question(train__episodes *e) {
    train_rollouts *x = &e->questions;
    while (e->next < x->count && x->items[e->next].member == x->items[e->next].turns) e->next++;
    for (int64_t i = e->next; i < x->count; i++)
        if (x->items[i].batch == e->due && x->items[i].member < x->items[i].turns) return &x->items[i];
    return e->next < x->count ? &x->items[e->next] : NULL;
}

static ravel_status take_seats(train__episodes *e, ravel_error *err) {
    ravel_status status = RAVEL_OK;
    train_rollout *q;
    for (int64_t i = 0; !status && i < e->count; i++) {
        seat *s = &e->seats[i];
        if (s->place != FREE) continue;
        if (!(q = next_question(e))) break;
        s->item = (train_rollout){.first = q->first, .group = q->group, .member = q->member++, .batch = q->batch};
        s->question = q->length;
        s->greedy = q->ended;
        s->tried = s->alone = 0;
        s->parted = 0;
        e->taken++;
        status = begin(e, s, err);
    }
    return status;
}

/* ---- the environment ------------------------------------------------------------------------------------ */

static seat *seat_at(train__episodes *e, int64_t id) {
    for (int64_t i = 0; i < e->count; i++)
        if (e->seats[i].place != FREE && id_of(&e->seats[i]) == id) return &e->seats[i];
    return NULL;
}

static ravel_status lost(train__episodes *e, seat *s, const train_env_reply *r, ravel_error *err) {
    s->item.retried++;
    s->tried += r->cost;
    if (s->tried >= TRAIN_TRY * (e->options.config->grpo.env_retries + 1)) return drop(e, s, r->observation, err);
    if (r->cost) warn(e, s, r->observation);
    s->alone |= r->alone;
    s->lost = s->place == DRAWING;
    return s->lost ? RAVEL_OK : begin(e, s, err);
}

static void warn_of_template(train__episodes *e, const seat *s) {
    if (!e->env || e->differing++) return;
    ravel__log(logger_of(e), RAVEL_LOG_WARN,
               "question %lld: the chat template writes the conversation in other tokens than the model drew and "
               "was given; the run goes on with those (env/template_differs_share counts such turns)",
               (long long)s->item.group);
}

/* What the environment says, as tokens. */
static ravel_status observe(train__episodes *e, seat *s, const train_env_reply *r, const int32_t **tokens, int64_t *n,
                            ravel_error *err) {
    const train_prompts *p = e->options.prompts;
    const train_said said = {r->observation ? r->observation : "", r->bytes, r->role, r->listed};
    int differs = 0;
    if (r->context)
        return train_turns_replace(e->options.text, &s->turns, r->context, r->context_bytes,
                                   r->observation ? &said : NULL, tokens, n, err);
    if (s->begun) {
        ravel_status status = train_turns_answer(e->options.text, &s->turns, s->tokens, s->used, s->item.drawn,
                                                 s->ended, &said, tokens, n, &differs, err);
        s->item.differs += differs;
        if (differs) warn_of_template(e, s);
        return status;
    }
    const char *line = train_prompts_line(p, s->item.group);
    ravel_status status = train_turns_begin(e->options.text, &s->turns, line, e->questions.tokens + s->item.first,
                                            line ? s->question : 0, r->observation ? &said : NULL, tokens, n, err);
    if (!status && *n == 0) status = ravel_error_set(err, RAVEL_E_DATA, "environment: it said nothing to begin with");
    return status;
}

static void end_episode(train__episodes *e, const seat *s, const char *reason) {
    if (e->env) train_env_end(e->env, id_of(s), reason);
}

static ravel_status next_turn(train__episodes *e, seat *s, const train_env_reply *r, ravel_error *err) {
    const int32_t *tokens;
    int64_t n = 0;
    ravel_error why = RAVEL_ERROR_INIT;
    ravel_status status = observe(e, s, r, &tokens, &n, &why);
    int full = !status && (r->context ? 0 : s->used) + n >= e->options.slot_tokens; /* no room for a further answer */
    if (status == RAVEL_E_DATA || (full && !s->begun)) {
        end_episode(e, s, "error");
        return drop(e, s, status ? why.message : "environment: its first observation is longer than --env-tokens", err);
    }
    if (status) return ravel_error_set(err, status, "%s", why.message);
    if (full || s->item.turns == e->options.config->grpo.max_turns) {
        end_episode(e, s, full ? "tokens" : "turns");
        return finish(e, s, 0, err);
    }
    if (r->context && s->begun && (status = train__seat_part(e, s, err))) return status;
    append_given(s, tokens, n);
    s->item.drawn = 0;
    if (!s->begun) s->item.prompt = s->used;
    s->begun = 1;
    s->place = READY;
    return RAVEL_OK;
}

static ravel_status take_reply(train__episodes *e, const train_env_reply *r, ravel_error *err) {
    seat *s = seat_at(e, r->id);
    if (!s) return RAVEL_OK; /* lost after the answer that ended it */
    RAVEL_ASSERT(r->status || s->place == AT_ENV);
    if (r->status) return lost(e, s, r, err);
    s->item.reward += r->reward;
    if (!isnan(r->accuracy)) s->item.accuracy = r->accuracy;
    if (r->end && !s->begun) return drop(e, s, "environment: the episode was over before the first turn", err);
    return r->end ? finish(e, s, 1, err) : next_turn(e, s, r, err);
}

static ravel_status hear_env(train__episodes *e, ravel_error *err) {
    train_env_reply r;
    size_t at = 0;
    if (!e->has_env) return RAVEL_OK;
    ravel_status status = train_env_hear(e->env, e->options.tp, &e->heard, err);
    while (!status && train_env_heard(&e->heard, &at, &r)) status = take_reply(e, &r, err);
    return status;
}

/* An answer goes to the environment. */
static ravel_status act(train__episodes *e, seat *s, ravel_error *err) {
    const int32_t *ids = s->tokens + s->used - s->item.drawn;
    int64_t tokens = s->item.drawn - (s->ended != 0);
    s->place = AT_ENV;
    if (!e->env) return RAVEL_OK;
    size_t bytes = train_text_decode(e->options.text, ids, tokens, NULL, 0);
    char *text = train__grown(NULL, e->text, &e->text_room, 0, (int64_t)bytes + 1, 1);
    if (!text) return ravel__no_memory(err, bytes, "an action");
    e->text = text;
    (void)train_text_decode(e->options.text, ids, tokens, text, bytes + 1);
    const train_env_action action = {.text = text,
                                     .bytes = bytes,
                                     .ids = ids,
                                     .tokens = s->item.drawn,
                                     .ended = s->ended,
                                     .last = s->item.turns == e->options.config->grpo.max_turns ||
                                             s->used + 1 >= e->options.slot_tokens};
    return train_env_step(e->env, id_of(s), &action, err);
}

/* ---- the generator -------------------------------------------------------------------------------------- */

/* With --correction the trainer computes its own log-probs and needs those of the distribution that was sampled
 * from. */
static seat *take_tokens(train__episodes *e, const train_answer *a) {
    seat *s = &e->seats[e->seat_of[a->request]];
    const float *logprob = e->options.config->policy.correction ? a->kept_logprob : a->logprob;
    RAVEL_ASSERT(s->place == DRAWING && s->used + a->count <= e->options.slot_tokens);
    e->seat_of[a->request] = -1;
    e->running--;
    if (s->item.turns + s->item.drawn == 0) s->item.version = a->version;
    for (int64_t i = 0; i < a->count; i++, s->used++) {
        s->tokens[s->used] = a->tokens[i];
        s->logprobs[s->used] = logprob[i];
        s->versions[s->used] = (int32_t)a->versions[i];
    }
    s->item.drawn += a->count;
    int64_t width = e->options.route_width; /* tokens that another pass has read before keep their routes */
    if (s->routes && a->route_count > s->routed) {
        memcpy(s->routes + s->routed * width, a->routes + s->routed * width,
               (size_t)((a->route_count - s->routed) * width) * sizeof *s->routes);
        s->routed = a->route_count;
    }
    return s;
}

ravel_status train__episodes_answer(void *user, const train_answer *a, ravel_error *err) {
    train__episodes *e = user;
    seat *s = take_tokens(e, a);
    if (a->count == 0) {
        if (e->has_env) end_episode(e, s, "error");
        return drop(e, s, "no server answered", err);
    }
    s->item.turns++;
    s->ended = a->ended != 0;
    if (s->lost) return begin(e, s, err);
    return e->has_env ? act(e, s, err) : finish(e, s, s->ended, err);
}

static ravel_status reserve_requests(train__episodes *e, int64_t need, ravel_error *err) {
    int spare = !e->turn;
    train_request *r = train__grown(NULL, e->requests[spare], &e->request_room[spare], 0, need, sizeof *r);
    if (r) e->requests[spare] = r;
    int64_t *seats = r ? train__grown(NULL, e->seat_of, &e->seat_room, e->request_count, need, sizeof *seats) : NULL;
    if (!seats) return ravel__no_memory(err, (size_t)need * sizeof *r, "requests");
    e->seat_of = seats;
    return RAVEL_OK;
}

/* Random numbers of a turn are its own. */
static train_request request_of(train__episodes *e, const seat *s) {
    return (train_request){.prompt = s->tokens,
                           .count = s->used,
                           .id = s->item.group ^ (s->item.turns << 44),
                           .samples = 1,
                           .first_sample = (int32_t)s->item.member,
                           .earlier = s->item.drawn,
                           .sampling = &e->sampling[s->greedy]};
}

/* Hands turns that are ready to the generator, as far as it has slots. */
static ravel_status start_turns(train__episodes *e, ravel_error *err) {
    int64_t ended = 0, more = 0, idle = train__draw_idle(e->options.drawing);
    while (ended < e->request_count && e->seat_of[ended] < 0) ended++;
    int64_t stay = e->request_count - ended;
    ravel_status status = reserve_requests(e, e->request_count + idle, err);
    if (status) return status;
    train_request *spare = e->requests[!e->turn];
    for (int64_t i = 0; i < e->count && more < idle; i++) {
        if (e->seats[i].place != READY) continue;
        spare[stay + more] = request_of(e, &e->seats[i]);
        e->seat_of[e->request_count + more++] = i;
        e->seats[i].place = DRAWING;
    }
    if (more == 0) return RAVEL_OK;
    if (stay) memcpy(spare, e->requests[e->turn] + ended, (size_t)stay * sizeof *spare);
    memmove(e->seat_of, e->seat_of + ended, (size_t)(stay + more) * sizeof *e->seat_of);
    e->request_count = stay + more;
    e->running += more;
    e->turn = !e->turn;
    return train__draw_start(e->options.drawing, spare, ended, more, err);
}

/* One step of the generator; waits where there is nothing to do but to listen. */
static ravel_status go_on(train__episodes *e, ravel_error *err) {
    e->polls.count = 0;
    e->polls.until = 0;
    if (e->env) train_peer_poll(e->env, &e->polls);
    train__draw_poll(e->options.drawing, &e->polls);
    if (e->env || !e->has_env) train_polls_wait(&e->polls, 0.2); /* other ranks wait for the first */
    if (e->env) train_peer_advance(e->env, &e->polls);
    return train__draw_advance(e->options.drawing, &e->polls, train__episodes_answer, e, err);
}

/* Running answers stop where they are, and go on as prompts that hold what was drawn. So what is drawn after new
 * weights came is drawn by these weights alone, over keys of their own, and a run that is resumed from here does the
 * same. */
static ravel_status pause_all(train__episodes *e, ravel_error *err) {
    train_generator *own = e->options.drawing.own;
    train_answer a;
    ravel_status status = RAVEL_OK;
    for (int64_t slot = 0; own && slot < e->count; slot++)
        if (train_generator_running(own, slot, &a)) (void)take_tokens(e, &a);
    for (int64_t i = 0; i < e->count && !status; i++) {
        seat *s = &e->seats[i];
        if (s->place != DRAWING) continue;
        s->place = READY;
        if (s->lost) status = begin(e, s, err);
    }
    e->request_count = e->running = 0;
    return status ? status : train__draw_begin(e->options.drawing, NULL, 0, err);
}

/* ---- public functions ------------------------------------------------------------------------------------ */

static ravel_status take_memory(train__episodes *e, ravel_error *err) {
    int64_t each = e->options.slot_tokens;
    e->seats = ravel__calloc(NULL, (size_t)e->count, sizeof *e->seats);
    for (int64_t i = 0; e->seats && i < e->count; i++) {
        e->seats[i].tokens = ravel__calloc(NULL, (size_t)(3 * each), 4);
        if (!e->seats[i].tokens) return ravel__no_memory(err, (size_t)(12 * each), "rollouts");
        e->seats[i].logprobs = (float *)(void *)(e->seats[i].tokens + each);
        e->seats[i].versions = e->seats[i].tokens + 2 * each;
        if (!e->options.route_width) continue;
        e->seats[i].routes = ravel__calloc(NULL, (size_t)(each * e->options.route_width), sizeof(int16_t));
        if (!e->seats[i].routes)
            return ravel__no_memory(err, (size_t)(each * e->options.route_width) * sizeof(int16_t), "routes");
    }
    return e->seats ? RAVEL_OK : ravel__no_memory(err, (size_t)e->count * sizeof *e->seats, "rollouts");
}

ravel_status train__episodes_create(const train__episodes_options *options, train__episodes **episodes,
                                    ravel_error *err) {
    const train_grpo_options *o = &options->config->grpo;
    train__episodes *e = calloc(1, sizeof *e);
    if (!e) return ravel__no_memory(err, sizeof *e, "episodes");
    e->options = *options;
    e->count = options->drawing.own ? o->slots : train__max(o->slots, train_remote_idle(options->drawing.remote));
    train_sampling_default(&e->sampling[0]);
    e->sampling[0].top_p = o->top_p;
    e->sampling[0].top_k = o->top_k;
    e->sampling[0].max_tokens = o->scoring.max_tokens;
    e->sampling[0].seed = options->config->run.seed;
    e->sampling[0].stop = options->stops;
    e->sampling[0].stops = options->stop_count;
    e->sampling[1] = e->sampling[0];
    e->sampling[0].temperature = o->temperature;
    e->sampling[1].temperature = 0;
    ravel_status status = take_memory(e, err);
    const train_peer_options env = {.target = o->env ? o->env : o->env_command,
                                    .processes = o->env_processes,
                                    .slots = o->service_slots,
                                    .seconds = o->env_seconds,
                                    .wait = o->service_wait,
                                    .logger = logger_of(e)};
    e->has_env = train_config_has_env(options->config);
    int first = !options->tp || ravel_comm_rank(options->tp) == 0;
    if (!status && e->has_env && first) status = train_env_open(&env, &e->env, err);
    if (status) {
        train__episodes_free(e);
        return status;
    }
    *episodes = e;
    return RAVEL_OK;
}

void train__episodes_free(train__episodes *e) {
    if (!e) return;
    train_peer_free(e->env);
    for (int64_t i = 0; e->seats && i < e->count; i++) {
        ravel__release(NULL, e->seats[i].tokens, (size_t)(12 * e->options.slot_tokens));
        ravel__release(NULL, e->seats[i].routes,
                       (size_t)(e->options.slot_tokens * e->options.route_width) * sizeof(int16_t));
        train_turns_free(&e->seats[i].turns);
    }
    ravel__release(NULL, e->seats, (size_t)e->count * sizeof *e->seats);
    for (int i = 0; i < 2; i++)
        ravel__release(NULL, e->requests[i], (size_t)e->request_room[i] * sizeof *e->requests[i]);
    ravel__release(NULL, e->seat_of, (size_t)e->seat_room * sizeof *e->seat_of);
    ravel__release(NULL, e->text, (size_t)e->text_room);
    train_rollouts_free(&e->questions);
    train_rollouts_free(&e->done);
    train_rollouts_free(&e->spare);
    train_polls_free(&e->polls);
    train_out_free(&e->heard);
    free(e);
}

/* What is not over of the batch that is due. Nothing is being drawn. */
static void drop_due(train__episodes *e) {
    for (int64_t i = 0; i < e->count; i++) {
        seat *s = &e->seats[i];
        if (s->place == FREE || s->item.batch != e->due) continue;
        end_episode(e, s, "stopped");
        s->place = FREE;
        e->taken--;
    }
    for (int64_t i = 0; i < e->questions.count; i++)
        if (e->questions.items[i].batch == e->due) e->questions.items[i].member = e->questions.items[i].turns;
}

static int64_t count_left(const train__episodes *e, int64_t batch) {
    int64_t left = 0;
    for (int64_t i = 0; i < e->count; i++) left += e->seats[i].place != FREE && e->seats[i].item.batch == batch;
    for (int64_t i = 0; i < e->questions.count; i++) {
        const train_rollout *q = &e->questions.items[i];
        if (q->batch == batch) left += q->turns - q->member;
    }
    return left;
}

ravel_status train__episodes_run(train__episodes *e, train_order *order, train_rollouts *answers, ravel_error *err) {
    e->due = order->due;
    e->due_left = count_left(e, order->due);
    if (e->env) train_peer_defer(e->env, train__now() - e->paused);
    if (!e->running) e->request_count = 0;
    ravel_status status = e->running ? RAVEL_OK : train__draw_begin(e->options.drawing, NULL, 0, err);
    while (!status && e->due_left && !order->stopped) {
        status = take_seats(e, err);
        if (!status) status = hear_env(e, err);
        if (!status) status = start_turns(e, err);
        if (!status) status = go_on(e, err);
        if (!status) status = train__grpo_stopped(e->options.hooks, e->options.tp, order, err);
    }
    e->paused = train__now();
    if (!status && (order->stopped || e->options.drawing.own)) status = pause_all(e, err);
    if (!status && order->stopped) drop_due(e);
    return status ? status : train__seats_hand_over(e, answers, err);
}
