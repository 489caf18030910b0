/* A feed on four ranks of this process: mock samples, packed and balanced, on every data-parallel rank.
 *
 *     06_feed [FILE.jsonl]
 *
 * Each rank counts what it was given; at the end the ranks add up, and the weights of every update sum to one however
 * the samples were dealt out. Under mpirun the same work function would run on the communicator of ravel_comm_open. */
#include <ravel/feed.h>

#include <inttypes.h>
#include <stdio.h>

enum { RANKS = 4, UPDATES = 3 };

/* Stands in for a training step: adds up the weights of a micro-batch. */
static double run_micro_batch(const ravel_micro_batch *micro) {
    double sum = 0;
    for (int64_t i = 0; i < micro->thd->local_tokens; i++) sum += (double)micro->weights[i];
    return sum;
}

static ravel_status run_update(ravel_comm *comm, ravel_feed *feed, ravel_error *err) {
    const ravel_feed_update *update;
    ravel_micro_batch micro;
    ravel_status status = ravel_feed_next(feed, &update, err);
    if (status) return status;
    double sum = 0;
    for (ravel_feed_iter iter = ravel_feed_iterate(feed, 0); ravel_feed_iter_next(&iter, &micro);)
        sum += run_micro_batch(&micro);
    printf("  rank %d, update %" PRId64 ": %" PRId64 " of %" PRId64 " samples in %" PRId64 " micro-batches\n",
           ravel_comm_rank(comm), update->number, update->mine.samples, update->counts.samples,
           update->counts.micro_steps);
    status = ravel_comm_allreduce(comm, &sum, &sum, 1, RAVEL_F64, RAVEL_SUM, err);
    if (!status && ravel_comm_rank(comm) == 0)
        printf("update %" PRId64 ": %" PRId64 " tokens, %.1f %% of the room; weights sum to %.6f\n", update->number,
               update->counts.tokens, 100.0 * (double)update->counts.tokens / (double)update->counts.capacity_tokens,
               sum);
    return status;
}

static ravel_status work(ravel_comm *comm, void *user, ravel_error *err) {
    const ravel_source *source = user;
    ravel_mesh_options mesh_options;
    ravel_plan_options plan;
    ravel_feed_options options;
    ravel_mesh *mesh = NULL;
    ravel_feed *feed = NULL;
    ravel_mesh_options_default(&mesh_options); /* all ranks are data-parallel */
    ravel_plan_options_default(&plan);
    ravel_feed_options_default(&options);
    plan.budget = 8192;
    options.plan = &plan;
    options.samples = 64;
    options.updates = UPDATES;
    ravel_status status = ravel_mesh_create(comm, &mesh_options, &mesh, err);
    if (!status) status = ravel_feed_create(mesh, source, &options, &feed, err);
    while (!status) status = run_update(comm, feed, err);
    ravel_feed_free(feed);
    ravel_mesh_free(mesh);
    return status == RAVEL_E_END ? RAVEL_OK : status;
}

int main(int argc, char **argv) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_source_options options;
    ravel_source *source = NULL;
    ravel_source_options_default(&options);
    if (argc > 1)
        options.data = argv[1];
    else
        options.mock = "{\"type\":\"lognormal\",\"max_seq_len\":4096,\"mean_seq_len\":1024,\"prompt_share\":0.3}";
    ravel_status status = ravel_source_open(&options, &source, &err);
    if (!status) status = ravel_threads_run(RANKS, NULL, work, source, &err);
    if (status) (void)fprintf(stderr, "%s\n", err.message);
    ravel_source_free(source);
    return status != RAVEL_OK;
}
