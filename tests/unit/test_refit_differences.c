/* Two ranks that do not agree: what they say, and that both say it. */
#include "tests/unit/check.h"

#include <ravel/refit.h>

/* What is wrong on one rank is everybody's error, with the same sentence. */
typedef struct quarrel {
    ravel_refit_tensor tensors[2][3]; /* of the sender, of the receiver */
    int64_t count[2];
    ravel_refit_options options[2];
    ravel_status status[2];
    char message[2][RAVEL_ERROR_MESSAGE_BYTES];
} quarrel;

static float quarrel_memory[2][3][64];

static void quarrel_init(quarrel *q) {
    static const char *const names[] = {"embed", "norm", "head"};
    memset(q, 0, sizeof *q);
    for (int side = 0; side < 2; side++) {
        ravel_refit_options_default(&q->options[side]);
        q->count[side] = 3;
        for (int i = 0; i < 3; i++)
            q->tensors[side][i] = (ravel_refit_tensor){
                .name = names[i], .dtype = RAVEL_F32, .ndim = 2, .dims = {4, 8}, .data = quarrel_memory[side][i]};
    }
}

static ravel_status quarrel_rank(ravel_comm *comm, void *user, ravel_error *err) {
    quarrel *q = user;
    int32_t side = ravel_comm_rank(comm);
    ravel_refit *refit = NULL;
    ravel_error own = RAVEL_ERROR_INIT;
    ravel_refit_source source = {.size = sizeof source, .tensors = q->tensors[0], .count = q->count[0]};
    ravel_refit_sink sink = {.size = sizeof sink, .tensors = q->tensors[1], .count = q->count[1]};
    q->status[side] =
        ravel_refit_create(comm, side ? NULL : &source, side ? &sink : NULL, &q->options[side], &refit, &own);
    memcpy(q->message[side], own.message, sizeof own.message);
    ravel_refit_free(refit);
    return ravel_comm_barrier(comm, err); /* the communicator is still good */
}

static bool quarrel_run(quarrel *q) {
    ravel_error err = RAVEL_ERROR_INIT;
    return EXPECT(ravel_threads_run(2, NULL, quarrel_rank, q, &err) == RAVEL_OK);
}

TEST(refit_lists_all_differences_on_both_sides) {
    quarrel q;
    quarrel_init(&q);
    q.tensors[1][0].dims[1] = 9;
    q.tensors[1][1].dtype = RAVEL_BF16;
    q.tensors[1][2].name = "lm_head";
    q.options[0].num_buffers = 2;
    q.options[1].num_buffers = 4;
    q.options[0].buffer_bytes = 8192;
    q.options[1].buffer_bytes = 16384;
    CHECK(quarrel_run(&q));
    CHECK_STR(q.message[0], q.message[1]);
    for (int side = 0; side < 2; side++) CHECK_EQ(q.status[side], RAVEL_E_MISMATCH);
    const char *text = q.message[0];
    CHECK_HAS(text, "differ in 6 ways");
    CHECK_HAS(text, "num-buffers (RAVEL_REFIT_NUM_BUFFERS): 2 on rank 0 (sender), 4 on rank 1 (receiver)");
    CHECK_HAS(text, "buffer-bytes (RAVEL_REFIT_BUFFER_BYTES): 8192 on rank 0 (sender), 16384 on rank 1 (receiver)");
    CHECK_HAS(text, "\"embed\": shape [4, 8] on rank 0 (sender), [4, 9] on rank 1 (receiver)");
    CHECK_HAS(text, "\"norm\": f32 on rank 0 (sender), bf16 on rank 1 (receiver) (cast narrow would convert it)");
    CHECK_HAS(text, "\"head\": rank 0 (sender) has it, no receiver wants it");
    CHECK_HAS(text, "\"lm_head\": rank 1 (receiver) wants it, no sender has it");
}

TEST(refit_differences_of_every_kind) {
    quarrel q;
    quarrel_init(&q);
    q.tensors[0][0].parts[0] = 2; /* only the first half is sent */
    CHECK(quarrel_run(&q));
    CHECK_HAS(q.message[1], "\"embed\": no sender has [2:4, 0:8], which rank 1 (receiver) wants");
    quarrel_init(&q);
    q.options[1].buffer_bytes = 65536; /* one side says nothing: it takes the other's value */
    q.options[0].num_buffers = 3;
    CHECK(quarrel_run(&q));
    CHECK_EQ(q.status[0], RAVEL_OK);
    quarrel_init(&q);
    q.options[0].buffer_bytes = 1 << 20;
    q.options[1].memory_ratio = 1e-6;
    CHECK(quarrel_run(&q));
    CHECK_HAS(q.message[0], "2 buffers of 1048576 bytes: rank 1 (receiver) can afford ");
    quarrel_init(&q);
    q.options[1].cast = RAVEL_REFIT_NARROW;
    q.options[1].delta = 1;
    CHECK(quarrel_run(&q));
    CHECK_HAS(q.message[0], "cast: exact on rank 0 (sender), narrow on rank 1 (receiver)");
    CHECK_HAS(q.message[0], "delta: no on rank 0 (sender), yes on rank 1 (receiver)");
    quarrel_init(&q);
    q.count[1] = 2;
    q.options[0].ignore_extra = q.options[1].ignore_extra = 1;
    CHECK(quarrel_run(&q));
    CHECK_EQ(q.status[1], RAVEL_OK);
    quarrel_init(&q);
    q.tensors[1][0].dtype = RAVEL_I32;
    q.options[0].cast = q.options[1].cast = RAVEL_REFIT_NARROW;
    CHECK(quarrel_run(&q));
    CHECK_HAS(q.message[0], "\"embed\": f32 on rank 0 (sender), i32 on rank 1 (receiver)");
}

TEST(refit_tells_everybody_what_is_wrong_on_one_rank) {
    quarrel q;
    quarrel_init(&q);
    q.tensors[1][2].data = NULL;
    CHECK(quarrel_run(&q));
    CHECK_EQ(q.status[0], RAVEL_E_ARGUMENT);
    CHECK_STR(q.message[0], "rank 1: sink tensor \"head\" has no data, and the sink no load");
    CHECK_STR(q.message[1], q.message[0]);
    quarrel_init(&q);
    q.options[0].num_buffers = 99;
    CHECK(quarrel_run(&q));
    CHECK_HAS(q.message[1], "rank 0: ");
    CHECK_HAS(q.message[1], "99");
    quarrel_init(&q);
    q.tensors[0][1].name = "embed";
    CHECK(quarrel_run(&q));
    CHECK_STR(q.message[1], "rank 0: the source has \"embed\" twice");
    quarrel_init(&q);
    q.options[1].size = 3;
    CHECK(quarrel_run(&q));
    CHECK_HAS(q.message[0], "rank 1: refit options: size is 3");
}
