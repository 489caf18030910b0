/* Every family through a whole trainer: folders in every form, layouts, resume and refit. docs/train.md has the table that
 * RAVEL_VERBOSE=1 prints; test_train_archs.c has the comparison with transformers that it begins with. */
#include "tests/unit/train_layout.h"
#include "tests/unit/train_support.h"

#include "train/model/hf/hf.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct family {
    char folder[256];
    ravel_shape shape;
} family;

static bool family_of(family *f, int i) {
    golden_folder(f->folder, golden_model(i));
    return EXPECT(train_config_read(f->folder, &f->shape, NULL) == RAVEL_OK);
}

static void family_job(const family *f, train_config *c) {
    layout_small_job(c);
    c->model.model = f->folder;
    c->learn.clip_grad = 1;
}

/* The farthest that an update on `ranks` ranks is from one on one rank; NaN: the family has no such layout. */
static double layout_off(const family *f, int axis) {
    train_config c;
    ravel_mesh_layout layout;
    layout_outcome one = {0}, many = {0};
    family_job(f, &c);
    if (axis == 0) c.mesh.tp = 2;
    if (axis == 1) c.mesh.pp = 2;
    if (axis == 2) c.mesh.dp = 2, c.learn.ep = 2;
    if (axis == 3) c.mesh.cp = 2;
    if (axis == 2 && !f->shape.experts) return NAN;
    if (train_layout_plan(&c.mesh, 2, &f->shape, &layout, NULL)) return NAN;
    train_config plain = c;
    plain.mesh.tp = plain.mesh.pp = plain.mesh.dp = plain.mesh.cp = plain.learn.ep = 1;
    double off = INFINITY;
    if (layout_run_once(&plain, TRAIN_SFT, 1, &one) && layout_run_once(&c, TRAIN_SFT, 2, &many))
        off = layout_distance(&one, &many);
    free(one.moment), free(many.moment);
    return off;
}

/* Four updates at once, and two that another layout goes on from. */
static double resume_off(const family *f) {
    char folder[64];
    curve whole, parts = {.count = 0};
    train_config c;
    family_job(f, &c);
    c.learn.schedule = TRAIN_CONSTANT;
    job_folder(folder);
    c.run.run = folder;
    c.run.steps = 4;
    bool ran = job_run(&c, TRAIN_SFT, 1, "train/loss", &whole);
    job_wipe(folder);
    job_folder(folder);
    c.run.steps = 2;
    ran = ran && job_run(&c, TRAIN_SFT, 1, "train/loss", &parts);
    c.run.steps = 4;
    c.run.resume = 1;
    c.mesh.dp = 2;
    c.learn.shard = TRAIN_SHARD_PARAMS;
    c.learn.ep = f->shape.experts ? 2 : 1;
    ran = ran && job_run(&c, TRAIN_SFT, 2, "train/loss", &parts);
    job_wipe(folder);
    return ran && parts.count == 4 ? curve_distance(&whole, &parts) : INFINITY;
}

/* The largest gap between the generator's log-probs and the trainer's, over updates that are refit in between. */
static double refit_gap(const family *f) {
    char folder[64], data[] = "/tmp/ravel-families-XXXXXX";
    curve gap = {.count = 0};
    train_config c;
    double most = 0;
    FILE *prompts = fdopen(mkstemp(data), "w");
    for (int i = 0; i < 8; i++) (void)fprintf(prompts, "{\"input_ids\": [%d, %d, 9, 40]}\n", 3 + i, 20 + i);
    (void)fclose(prompts);
    family_job(f, &c);
    c.source.mock = NULL;
    c.grpo.task = NULL;
    c.grpo.data = data;
    c.grpo.reward = "length:1,ended:1";
    c.grpo.scoring.max_tokens = 16;
    c.run.steps = 3;
    c.grpo.updates = 1;
    c.grpo.eval_prompts = 0;
    c.grpo.prompts = 4;
    c.grpo.group_size = 4;
    c.grpo.max_flat = 0;
    c.grpo.entropy = 0.1; /* answers without a reward change the weights all the same */
    c.learn.lr = 0.01;
    job_folder(folder);
    c.run.run = folder;
    if (!job_run(&c, TRAIN_GRPO, 2, "policy/logprob_gap_max", &gap) || gap.count != 3) most = INFINITY;
    for (int i = 0; i < gap.count; i++) most = fmax(most, gap.values[i]);
    job_wipe(folder);
    EXPECT(unlink(data) == 0);
    return most;
}

static ravel_status read_array(void *user, const train_tensor *t, int64_t first, int64_t rows, void *to,
                               ravel_error *err) {
    const train_array *from = user;
    (void)err;
    memcpy(to, train__at(from->data, from->dtype, t->offset + first * t->dims[1]),
           (size_t)(rows * t->dims[1] * ravel_dtype_bytes(from->dtype)));
    return RAVEL_OK;
}

/* Folders of several files, in f32 to the bit and in bf16 to its rounding, with the config that came. */
TEST(train_families_in_folders_of_every_form) {
    static const int32_t dtypes[] = {RAVEL_F32, RAVEL_BF16};
    for (int i = 0; i < 2 * GOLDEN_MODELS; i++) {
        family f;
        ravel_shape back;
        char path[64], index[128];
        rig r;
        ravel_error err = RAVEL_ERROR_INIT;
        train_model_options o;
        train_model_options_default(&o);
        o.budget = 8;
        o.inference = 1;
        if (!family_of(&f, i / 2) || !rig_open(&r, "cpu", 1, &f.shape, &o)) return;
        const train_params *p = train_model_params(r.model);
        train_array weights = train_model_array(r.model);
        train_rows_source rows = {read_array, &weights, weights.dtype};
        const train_folder_options options = {
            .dtype = dtypes[i % 2], .eos = 2, .shard_bytes = 1 << 13, .source = f.folder};
        CHECK_OK(train_tensors_load(p, &weights, f.folder, &err), &err);
        float *before = malloc((size_t)p->elements * sizeof *before);
        memcpy(before, weights.data, (size_t)p->elements * sizeof *before);
        job_folder(path);
        CHECK_OK(train_folder_save(path, &f.shape, p, &rows, &options, &err), &err);
        (void)snprintf(index, sizeof index, "%s/model.safetensors.index.json", path);
        CHECK(access(index, F_OK) == 0);
        CHECK_OK(train_config_read(path, &back, &err), &err);
        CHECK(memcmp(&back, &f.shape, sizeof back) == 0);
        memset(weights.data, 0, (size_t)p->elements * sizeof *before);
        CHECK_OK(train_tensors_load(p, &weights, path, &err), &err);
        double off = relative_distance(weights.data, before, p->elements);
        if (!EXPECT(i % 2 ? off > 0 && off < 3e-3 : off == 0))
            printf("    %s is off by %g\n", golden_model(i / 2), off);
        free(before);
        rig_close(&r);
        job_wipe(path);
    }
}

TEST(train_families_in_every_layout) {
    for (int i = 0; i < GOLDEN_MODELS; i++) {
        static const char *const axes[] = {"tp 2", "pp 2", "ep 2", "cp 2"};
        family f;
        double off[4];
        if (!family_of(&f, i)) return;
        for (int axis = 0; axis < 4; axis++) {
            off[axis] = layout_off(&f, axis);
            if (!isnan(off[axis]) && !EXPECT(off[axis] < 1e-5))
                printf("    %s, %s: off by %g\n", golden_model(i), axes[axis], off[axis]);
        }
        double resume = resume_off(&f), refit = refit_gap(&f);
        if (!EXPECT(resume < 1e-5 && refit < 1e-4))
            printf("    %s: resume off by %g, refit by %g\n", golden_model(i), resume, refit);
        if (getenv("RAVEL_VERBOSE"))
            printf("    | %s | %.0e | %.0e | %.0e | %.0e | %.0e | %.0e |\n", golden_model(i), off[0], off[1], off[2],
                   off[3], resume, refit);
    }
}
