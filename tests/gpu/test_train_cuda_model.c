/* Whole models on the GPU: loss and gradients of the golden models against the reference, bits that repeat, losses of
 * many updates beside the CPU's, and answers whose log-probs are the trainer's. */
#include "tests/unit/train_support.h"

#include "train/learn/optimizer.h"
#include "train/model/hf/arch.h"
#include "train/model/generate/generator.h"

#include <math.h>
#include <stdlib.h>

static bool have_gpu(void) {
    const train_kernels *kernels;
    train_device *device;
    static ravel_error err = RAVEL_ERROR_INIT; /* the reason to skip is read later */
    ravel_status status = train_kernels_find("cuda", &kernels, &err);
    if (!status) status = kernels->open(&(train_device_options){.threads = 1}, &device, &err);
    if (status == RAVEL_E_UNSUPPORTED) check_skip(err.message);
    if (status && status != RAVEL_E_UNSUPPORTED) check_fail(__FILE__, __LINE__, "%s", err.message);
    if (status) return false;
    kernels->close(device);
    return true;
}

static train_model_options budget_of(int64_t budget, int32_t recompute) {
    train_model_options o;
    train_model_options_default(&o);
    o.budget = budget;
    o.recompute = recompute;
    return o;
}

static double learn(rig *r, const train_batch *b) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_result result = {0};
    train_model_clear_grads(r->model);
    if (train_model_learn(r->model, b, NULL, &result, &err)) check_fail(__FILE__, __LINE__, "%s", err.message);
    return result.loss;
}

/* Experts: loss to 2 % (a token whose two likeliest experts are close may go to the other one in bf16), the same bits twice. */
TEST(cuda_model_experts) {
    if (!have_gpu()) return;
    ravel_shape shape = small_shape();
    shape.hidden = 64, shape.head_dim = 16, shape.ffn = 64, shape.qk_norm = RAVEL_QK_NORM_HEAD;
    shape.attention_bias = 0;
    shape.experts = 16, shape.experts_active = 4, shape.expert_ffn = 32, shape.router_norm = 1, shape.dense_layers = 1;
    for (int recompute = 0; recompute < 3; recompute++) {
        rig gpu, ref;
        ravel_error err = RAVEL_ERROR_INIT;
        train_model_options o = budget_of(200, recompute);
        int32_t tokens[150], cu[3] = {0, 90, 150};
        for (int t = 0; t < 150; t++) tokens[t] = (t * 7 + t / 5) % (int32_t)shape.vocab;
        float weights[150];
        for (int t = 0; t < 150; t++) weights[t] = 1.0f / 148;
        train_batch b = {.samples = 2, .tokens = tokens, .cu_seqlens = cu, .weights = weights};
        CHECK(rig_open(&gpu, "cuda", 1, &shape, &o) && rig_open(&ref, "ref", 1, &shape, &o));
        CHECK_OK(train_model_init(gpu.model, 4, 0.1, &err), &err);
        CHECK_OK(train_model_init(ref.model, 4, 0.1, &err), &err);
        double loss = learn(&gpu, &b), want = learn(&ref, &b);
        if (!(fabs(loss - want) < 0.02 * fabs(want))) check_fail(__FILE__, __LINE__, "loss %g, not %g", loss, want);
        float *x = rig_grads(&gpu), *y = rig_grads(&ref);
        int64_t n = train_model_params(gpu.model)->elements;
        double off = relative_distance(x, y, n);
        if (!(off < 0.3)) check_fail(__FILE__, __LINE__, "gradients are off by %g", off);
        double again = learn(&gpu, &b);
        float *z = rig_grads(&gpu);
        CHECK(again >= loss && again <= loss && memcmp(x, z, (size_t)n * sizeof *x) == 0);
        free(x), free(y), free(z);
        rig_close(&gpu);
        rig_close(&ref);
    }
}

/* Loss to 1 %, the whole gradient to 5 %: bf16 has eight bits. The same call twice gives the same bits. */
TEST(cuda_model_golden) {
    golden g;
    static const int order[] = {4, 2, 6, 0, 5, 3, 1};
    if (!have_gpu()) return;
    CHECK(golden_open(&g));
    for (int mode = 0; mode < MODES; mode++)
        for (int recompute = 0; recompute < 3; recompute++) {
            train_model_options o = budget_of(400, recompute);
            train_batch b = golden_batch(&g, mode, order, SAMPLES, 8);
            rig gpu, ref;
            CHECK(rig_golden(&gpu, "cuda", 1, &o) && rig_golden(&ref, "ref", 1, &o));
            double loss = learn(&gpu, &b), want = learn(&ref, &b);
            if (!(fabs(loss - want) < 0.01 * fabs(want))) check_fail(__FILE__, __LINE__, "loss %g, not %g", loss, want);
            float *x = rig_grads(&gpu), *y = rig_grads(&ref);
            int64_t n = train_model_params(gpu.model)->elements;
            double off = relative_distance(x, y, n);
            if (!(off < 0.05)) check_fail(__FILE__, __LINE__, "mode %d: gradients are off by %g", mode, off);
            double again = learn(&gpu, &b);
            float *z = rig_grads(&gpu);
            if (again != loss || memcmp(x, z, (size_t)n * sizeof *x) != 0)
                check_fail(__FILE__, __LINE__, "mode %d, recompute %d: another run gives other bits", mode, recompute);
            free(x);
            free(y);
            free(z);
            batch_free(&b);
            rig_close(&gpu);
            rig_close(&ref);
        }
    ravel_safetensors_free(g.file);
}

/* Micro-batches of two shapes and changing weights, by calls and by graphs: the same bits after each. */
TEST(cuda_model_graphs) {
    golden g;
    static const int orders[2][3] = {{4, 2, 6}, {6, 4, 2}};
    if (!have_gpu()) return;
    CHECK(golden_open(&g));
    for (int recompute = 0; recompute < 3; recompute++) {
        train_model_options o = budget_of(400, recompute);
        rig graphs, calls;
        CHECK(rig_golden(&graphs, "cuda", 1, &o));
        o.graphs = TRAIN_GRAPHS_OFF;
        CHECK(rig_golden(&calls, "cuda", 1, &o));
        for (int i = 0; i < 12; i++) {
            train_batch b = golden_batch(&g, i % MODES, orders[i / 6], 3, 8);
            double loss[] = {learn(&graphs, &b), learn(&calls, &b)};
            float *x = rig_grads(&graphs), *y = rig_grads(&calls);
            int64_t n = train_model_params(calls.model)->elements;
            if (loss[0] != loss[1] || memcmp(x, y, (size_t)n * sizeof *x) != 0)
                check_fail(__FILE__, __LINE__, "micro-batch %d, recompute %d: a graph gives other bits", i, recompute);
            free(x);
            free(y);
            batch_free(&b);
        }
        train_graph_figures f = train_model_graphs(graphs.model);
        CHECK(!graphs.kernels->capture_begin || (f.recorded > 0 && f.launched > f.recorded));
        CHECK_EQ(train_model_graphs(calls.model).launched, 0);
        rig_close(&graphs);
        rig_close(&calls);
    }
    ravel_safetensors_free(g.file);
}

/* Every architecture: the loss of the reference to 1 %, its gradients to 10 %: products in bf16 through two layers of large
 * random weights. */
TEST(cuda_model_architectures) {
    if (!have_gpu()) return;
    for (int m = 0; golden_model(m); m++) {
        ravel_error err = RAVEL_ERROR_INIT;
        char folder[256];
        int32_t tokens[64], cu[3] = {0, 37, 64};
        ravel_shape shape;
        double loss[2] = {0, 0};
        float *grads[2] = {NULL, NULL};
        int64_t n = 0;
        golden_folder(folder, golden_model(m));
        CHECK_OK(train_config_read(folder, &shape, &err), &err);
        for (int i = 0; i < 64; i++) tokens[i] = (int32_t)((uint32_t)(i * 2654435761u) % (uint32_t)shape.vocab);
        train_batch b = {.samples = 2, .tokens = tokens, .cu_seqlens = cu};
        for (int side = 0; side < 2; side++) {
            rig r;
            train_model_options o = budget_of(64, TRAIN_RECOMPUTE_LIGHT);
            CHECK(rig_open(&r, side ? "cuda" : "ref", 1, &shape, &o));
            train_array weights = train_model_array(r.model);
            CHECK_OK(train_tensors_load(train_model_params(r.model), &weights, folder, &err), &err);
            loss[side] = learn(&r, &b);
            grads[side] = rig_grads(&r);
            n = train_model_params(r.model)->elements;
            rig_close(&r);
        }
        double off = relative_distance(grads[1], grads[0], n);
        if (!(fabs(loss[1] - loss[0]) < 0.01 * loss[0]) || !(off < 0.1))
            check_fail(__FILE__, __LINE__, "%s: loss %g, not %g; gradients off by %g", golden_model(m), loss[1],
                       loss[0], off);
        free(grads[0]);
        free(grads[1]);
    }
}

static ravel_status update(rig *r, train_optimizer *optimizer, const train_batch *b, double *loss, ravel_error *err) {
    train_update u;
    int64_t spans;
    train_model_clear_grads(r->model);
    ravel_status s = train_model_learn(r->model, b, NULL, NULL, err);
    if (s) return s;
    (void)train_optimizer_squares(optimizer, &spans);
    train_optimizer_clip(optimizer, NULL, 0, 1);
    train_optimizer_step(optimizer, 2e-3);
    s = train_model_read(r->model, &u, err);
    *loss = u.sums.loss / u.sums.tokens;
    return s;
}

/* 50 updates: the losses of bf16 with f32 master weights stay within 3 % of f32's, and fall. */
TEST(cuda_model_learns_as_the_cpu_does) {
    enum { STEPS = 50, TOKENS = 96 };
    ravel_shape shape;
    ravel_error err = RAVEL_ERROR_INIT;
    double losses[2][STEPS];
    int32_t tokens[TOKENS], cu[] = {0, 40, 70, TOKENS};
    if (!have_gpu()) return;
    CHECK_OK(train_config_read("tests/golden/archs/qwen3", &shape, &err), &err);
    for (int i = 0; i < TOKENS; i++) tokens[i] = (int32_t)((uint32_t)(i * 40503u) % (uint32_t)shape.vocab);
    train_batch b = {.samples = 3, .tokens = tokens, .cu_seqlens = cu};
    for (int side = 0; side < 2; side++) {
        rig r;
        train_optimizer *optimizer;
        train_optimizer_options oo;
        train_model_options o = budget_of(TOKENS, TRAIN_RECOMPUTE_NONE);
        train_optimizer_options_default(&oo);
        CHECK(rig_open(&r, side ? "cuda" : "cpu", 1, &shape, &o));
        CHECK_OK(train_model_init(r.model, 3, 0, &err), &err);
        CHECK_OK(train_optimizer_create(r.model, &oo, NULL, &optimizer, &err), &err);
        for (int i = 0; i < STEPS; i++) CHECK_OK(update(&r, optimizer, &b, &losses[side][i], &err), &err);
        train_optimizer_free(optimizer);
        rig_close(&r);
    }
    for (int i = 0; i < STEPS; i++)
        if (!(fabs(losses[1][i] - losses[0][i]) < 0.03 * losses[0][0]))
            check_fail(__FILE__, __LINE__, "update %d: loss %g, the CPU has %g", i, losses[1][i], losses[0][i]);
    CHECK(losses[1][STEPS - 1] < 0.7 * losses[1][0]);
}

/* ---- answers -------------------------------------------------------------------------------------------------- */

enum { ANSWERS = 12, PROMPT = 9, MOST = 120 };

typedef struct heard {
    int32_t tokens[ANSWERS][MOST];
    float logprob[ANSWERS][MOST];
    int64_t count[ANSWERS];
    int32_t answers;
} heard;

static ravel_status hear(void *user, const train_answer *answer, ravel_error *err) {
    heard *h = user;
    int32_t i = (int32_t)(answer->id * 4 + answer->sample);
    (void)err;
    memcpy(h->tokens[i], answer->tokens, (size_t)answer->count * sizeof *answer->tokens);
    memcpy(h->logprob[i], answer->logprob, (size_t)answer->count * sizeof *answer->logprob);
    h->count[i] = answer->count;
    h->answers++;
    return RAVEL_OK;
}

static void generate(rig *r, int64_t slots, int32_t graphs, heard *h) {
    ravel_error err = RAVEL_ERROR_INIT;
    train_generator_options o;
    train_generator *g;
    train_sampling sampling;
    int32_t prompts[3][PROMPT];
    train_request requests[3];
    train_generator_options_default(&o);
    o.slots = slots;
    o.slot_tokens = PROMPT + MOST;
    o.graphs = graphs;
    train_sampling_default(&sampling);
    sampling.max_tokens = 100;
    sampling.seed = 5;
    for (int i = 0; i < 3; i++) {
        for (int t = 0; t < PROMPT; t++) prompts[i][t] = (i * 31 + t * 7) % (int32_t)r->shape.vocab;
        requests[i] =
            (train_request){.prompt = prompts[i], .count = PROMPT - i, .id = i, .samples = 4, .sampling = &sampling};
    }
    memset(h, 0, sizeof *h);
    CHECK_OK(train_generator_create(r->kernels, r->device, &r->shape, &o, &g, &err), &err);
    train_generator_set_weights(g, train_model_weights(r->model), 1);
    CHECK_OK(train_generator_run(g, requests, 3, hear, h, &err), &err);
    train_generator_free(g);
}

/* Answers do not depend on what runs beside them, down to the bits; and their log-probs are the trainer's, to bf16. */
TEST(cuda_generator) {
    static heard wide, narrow;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_shape shape;
    rig r;
    train_model_options o = budget_of(ANSWERS * (PROMPT + MOST), TRAIN_RECOMPUTE_LIGHT);
    if (!have_gpu()) return;
    CHECK_OK(train_config_read("tests/golden/archs/qwen3", &shape, &err), &err);
    CHECK(rig_open(&r, "cuda", 1, &shape, &o));
    r.shape = shape;
    CHECK_OK(train_model_init(r.model, 3, 0.1, &err), &err);
    generate(&r, 12, TRAIN_GRAPHS_AUTO, &wide);
    generate(&r, 5, TRAIN_GRAPHS_AUTO, &narrow);
    CHECK_EQ(wide.answers, ANSWERS);
    CHECK(memcmp(wide.tokens, narrow.tokens, sizeof wide.tokens) == 0);
    CHECK(memcmp(wide.logprob, narrow.logprob, sizeof wide.logprob) == 0);
    generate(&r, 12, TRAIN_GRAPHS_OFF, &narrow); /* nothing but the host's work depends on graphs */
    CHECK(memcmp(wide.tokens, narrow.tokens, sizeof wide.tokens) == 0);
    CHECK(memcmp(wide.logprob, narrow.logprob, sizeof wide.logprob) == 0);
    static int32_t tokens[ANSWERS * (PROMPT + MOST)], cu[ANSWERS + 1];
    static float logprob[ANSWERS * (PROMPT + MOST)];
    int32_t at = 0;
    for (int i = 0; i < ANSWERS; i++) {
        int request = i / 4;
        cu[i] = at;
        for (int t = 0; t < PROMPT - request; t++) tokens[at++] = (request * 31 + t * 7) % (int32_t)shape.vocab;
        for (int64_t t = 0; t < wide.count[i]; t++) tokens[at++] = wide.tokens[i][t];
    }
    cu[ANSWERS] = at;
    train_batch b = {.samples = ANSWERS, .tokens = tokens, .cu_seqlens = cu};
    train_result result = {.logprob = logprob};
    CHECK_OK(train_model_score(r.model, &b, &result, &err), &err);
    double ratio = 0, count = 0, worst = 0;
    for (int i = 0; i < ANSWERS; i++)
        for (int64_t t = 0; t < wide.count[i]; t++, count++) {
            double gap = (double)logprob[cu[i] + PROMPT - i / 4 + t] - wide.logprob[i][t];
            ratio += exp(gap);
            worst = fmax(worst, fabs(gap));
        }
    if (!(fabs(ratio / count - 1) < 2e-3) || !(worst < 0.2))
        check_fail(__FILE__, __LINE__, "mean ratio %g, largest gap %g", ratio / count, worst);
    rig_close(&r);
}
