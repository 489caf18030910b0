/* The publisher's calls: the trainers' ranks make a directory together, and then versions. */
#include "refit/publish/serve.h"
#include "refit/model/caller.h"
#include "refit/publish/store.h"

#include "base/assert.h"
#include "base/system/clock.h"
#include "base/log.h"
#include "comm/machine.h"
#include "comm/link/token.h"
#include "base/bytes.h"
#include "base/xxh3.h"
#include "base/options.h"
#include "base/system/team.h"

#include <ravel/publish.h>

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct ravel_publisher {
    ravel_publish_options options;
    ravel_refit_source source_copy;
    ravel__counted memory;
    ravel__arena arena;
    ravel__holding holding;
    ravel__store store;
    ravel__server server;
    ravel_comm *comm;
    int32_t rank, ranks;
    int32_t threads;
    char token[RAVEL__TOKEN_MOST];
    char addresses[RAVEL__ADDRESS_BYTES]; /* of this rank */
    char root[RAVEL__ADDRESS_BYTES];      /* rank 0's first one */
    unsigned char *directory_bytes;
    size_t directory_size;
    int64_t last; /* version */
    double total_seconds, copy_seconds;
    int64_t lag; /* of the connected generator furthest behind, just before the last publish */
};

#define ROW(...) RAVEL__ROW(ravel_publish_options, __VA_ARGS__)

static const ravel_option table[] = {
    ROW("keep", I32, keep, "2", 1, RAVEL__STORE_KEEP_MOST, NULL, "versions that are kept"),
    ROW("threads", I32, threads, "0", 0, RAVEL__LANES_MOST, NULL,
        "threads that copy and that serve; 0: by cores, at most 8"),
    ROW("block-bytes", I64, block_bytes, "256k", 4096, 67108864.0, NULL, "bytes of a hashed block, a multiple of 8"),
    ROW("sparse", BOOL, sparse, "yes", 0, 0, NULL,
        "to generators that hold a kept version, send only the changed elements of a block if that is less"),
    ROW("open", BOOL, open, "no", 0, 0, NULL, "listen beyond this machine without a token"),
    ROW("token", STRING, token, "", 0, 0, "SECRET",
        "shared secret of trainers and generators, or the word none; by default RAVEL_TOKEN or RAVEL_TOKEN_FILE"),
    ROW("tls", BOOL, tls, "no", 0, 0, NULL, "encrypt connections over TCP, on both sides; also RAVEL_TLS=1"),
    ROW("allow", STRING, allow, "", 0, 0, "NETWORKS", "networks that may connect, like 10.0.0.0/8,fd00::/8; none: any"),
    ROW("host", STRING, host, "", 0, 0, "NAME",
        "name under which generators reach this rank; none: the address's, or this machine's"),
    ROW("max-links", I32, max_links, "1024", 1, 65536, NULL, "connections per serving thread"),
    ROW("timeout", F64, timeout, "0", 0, 86400, NULL, "seconds for the trainers' agreements; 0: the communicator's"),
    {0},
};

ravel_option_table ravel_publish_option_table(void) {
    return table;
}

void ravel_publish_options_default(ravel_publish_options *options) {
    ravel__options_preset(table, options, sizeof *options);
    options->token = options->allow = options->host = NULL;
    options->dtype = -1;
}

static const char *text_or_null(const char *text) {
    return text && text[0] ? text : NULL;
}

/* ---- create --------------------------------------------------------------------------------------------- */

static ravel_status check_options(ravel_publisher *p, ravel_error *err) {
    const ravel_publish_options *o = &p->options;
    if (o->block_bytes % 8 != 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "block-bytes is %lld; it must be a multiple of 8",
                               (long long)o->block_bytes);
    if (o->dtype >= 0 && (ravel_dtype_kind(o->dtype) != 'f' || ravel_dtype_bytes(o->dtype) < 2))
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "dtype %s (%d): floats can be kept as f64, f32, bf16 or f16, or with -1 as they are",
                               ravel_dtype_bytes(o->dtype) ? ravel_dtype_name(o->dtype) : "unknown", o->dtype);
    p->threads = o->threads > 0 ? o->threads : ravel__processors(8);
    return ravel__token_find(o->token, NULL, p->token, err);
}

static ravel_status take_source(ravel_publisher *p, const ravel_refit_source *source, ravel_error *err) {
    if (!source) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a publisher needs a source");
    ravel_status status = ravel__source_take(source, &p->source_copy, &p->arena, &p->holding, err);
    if (status == RAVEL_OK)
        status = ravel__store_init(&p->store, &p->holding, &p->source_copy, p->options.keep, p->options.block_bytes,
                                   p->options.dtype, p->options.sparse, &p->memory.allocator, err);
    return status;
}

/* The default address of other ranks: beside rank 0's. */
static ravel_status own_address(ravel_publisher *p, const char *given, const char *root, char *text, size_t bytes,
                                ravel_error *err) {
    RAVEL_ASSERT(bytes >= RAVEL__ADDRESS_BYTES);
    const char *colon = strrchr(root, ':');
    if (!root[0]) return ravel_error_set(err, RAVEL_E_ARGUMENT, "rank 0 needs an address to publish at");
    if (strlen(root) > 256 || (given && strlen(given) > 256))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "the address to publish at is longer than 256 bytes");
    if (given && given[0])
        (void)snprintf(text, bytes, "%s", given);
    else if (strncmp(root, "unix:", 5) == 0)
        (void)snprintf(text, bytes, "%.256s.rank%d", root, p->rank);
    else if (root[0] == ':' || strncmp(root, "127.", 4) == 0 || strncmp(root, "[::1]", 5) == 0 ||
             strncmp(root, "localhost:", 10) == 0)
        (void)snprintf(text, bytes, "%.*s:0", colon ? (int)(colon - root) : 0, root);
    else
        (void)snprintf(text, bytes, "%s:0", root[0] == '[' ? "[::]" : "0.0.0.0");
    return RAVEL_OK;
}

static ravel_status open_server(ravel_publisher *p, const char *address, ravel_error *err) {
    ravel__lane_options lanes = {p->token,        text_or_null(p->options.allow),
                                 p->options.open, p->options.max_links,
                                 p->options.tls,  p->options.sparse};
    char machine[256] = "localhost";
    const char *host = text_or_null(p->options.host);
    if (!host) {
        (void)gethostname(machine, sizeof machine - 1);
        host = machine;
    }
    ravel_status status =
        ravel__server_open(&p->server, &p->store, address, p->threads, &lanes, &p->memory.allocator, err);
    if (status == RAVEL_OK) status = ravel__server_addresses(&p->server, host, p->addresses, sizeof p->addresses, err);
    return status;
}

/* Collective: what every rank has, to every rank, and the directory. */
static ravel_status make_directory(ravel_publisher *p, ravel_error *err) {
    unsigned char *own = NULL;
    size_t size = 0, bytes = (size_t)p->ranks * sizeof(ravel__sender);
    const ravel_allocator *allocator = &p->memory.allocator;
    ravel__differences list;
    ravel__sender *all = ravel__calloc(allocator, (size_t)p->ranks, sizeof *all);
    ravel_status status = all ? ravel__manifest_make(&p->holding, p->options.dtype, allocator, &own, &size, err)
                              : ravel__no_memory(err, bytes, "the trainers");
    ravel__differences_init(&list, p->options.logger);
    status = ravel_agree(p->comm, status, err);
    if (status == RAVEL_OK) {
        ravel__sender mine = {ravel__machine_number(), ravel__xxh3_of(own, size), (int64_t)size, p->options.block_bytes,
                              ""};
        memcpy(mine.addresses, p->addresses, sizeof mine.addresses);
        status = ravel_comm_allgather(p->comm, &mine, all, (int64_t)sizeof mine, RAVEL_U8, err);
    }
    RAVEL_ASSERT(status != RAVEL_OK || all); /* or the ranks had agreed on the failure */
    for (int32_t r = 0; r < p->ranks && status == RAVEL_OK; r++)
        if (all[r].block_bytes != all[0].block_bytes)
            ravel__differences_add(&list, "block-bytes: %lld on rank 0, %lld on rank %d", (long long)all[0].block_bytes,
                                   (long long)all[r].block_bytes, r);
    if (status == RAVEL_OK) {
        memcpy(p->root, all[0].addresses, sizeof p->root);
        p->root[strcspn(p->root, ",")] = '\0';
        status =
            ravel__directory_share(p->comm, all, own, allocator, &list, &p->directory_bytes, &p->directory_size, err);
    }
    if (status == RAVEL_OK) status = ravel__differences_end(&list, err);
    ravel__release(allocator, own, size);
    ravel__release(allocator, all, bytes);
    return status;
}

static ravel_status start(ravel_publisher *p, ravel_error *err) {
    RAVEL_ASSERT(p->directory_bytes && p->directory_size > 0);
    ravel__directory d;
    ravel_status status = ravel__directory_decode(p->directory_bytes, p->directory_size, &p->memory.allocator, &d, err);
    if (status != RAVEL_OK) return status;
    status = ravel__server_start(&p->server, p->directory_bytes, p->directory_size, &d, err);
    ravel__directory_free(&d);
    return status;
}

static ravel_status join(ravel_publisher *p, ravel_comm *comm, const char *address, char *root, ravel_error *err) {
    RAVEL_ASSERT(!p->comm);
    ravel_status status = ravel_comm_dup(comm, &p->comm, err);
    if (status != RAVEL_OK) return status;
    ravel_comm_set_name(p->comm, "publication");
    p->rank = ravel_comm_rank(p->comm);
    p->ranks = ravel_comm_size(p->comm);
    memset(root, 0, RAVEL__ADDRESS_BYTES);
    if (p->rank == 0 && address) (void)snprintf(root, RAVEL__ADDRESS_BYTES, "%s", address);
    return ravel_comm_broadcast(p->comm, root, RAVEL__ADDRESS_BYTES, RAVEL_U8, 0, err);
}

static ravel_status prepare(ravel_publisher *p, const char *address, const char *root, const ravel_refit_source *source,
                            ravel_error *err) {
    char text[RAVEL__ADDRESS_BYTES];
    ravel_status status = check_options(p, err);
    if (status == RAVEL_OK) status = take_source(p, source, err);
    if (status == RAVEL_OK) status = own_address(p, address, root, text, sizeof text, err);
    if (status == RAVEL_OK) status = open_server(p, text, err);
    if (status == RAVEL_OK && p->rank == 0 && (ravel__token_is_none(p->token) || (p->options.open && !p->token[0])))
        ravel__log(p->options.logger, RAVEL_LOG_WARN,
                   "every process that reaches %s may pull the weights: no token is asked for",
                   ravel__hub_address(p->server.lane[0].hub));
    if (status == RAVEL_OK && p->options.timeout > 0) ravel_comm_set_timeout(p->comm, p->options.timeout);
    return status;
}

ravel_status ravel_publisher_create(ravel_comm *comm, const char *address, const ravel_refit_source *source,
                                    const ravel_publish_options *options, ravel_publisher **publisher,
                                    ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    ravel_publish_options o;
    char root[RAVEL__ADDRESS_BYTES];
    if (!comm) return ravel_error_set(err, RAVEL_E_ARGUMENT, "a publisher needs the trainers' communicator");
    ravel_publish_options_default(&o);
    ravel_status taken = options ? ravel__take_options(table, "publish", options, &o, sizeof o, &own) : RAVEL_OK;
    ravel_publisher *p = ravel__calloc(o.allocator, 1, sizeof *p);
    if (!p) return ravel__no_memory(err, sizeof *p, "a publisher");
    ravel__counted_init(&p->memory, o.allocator);
    ravel__arena_init(&p->arena, &p->memory.allocator, 4096);
    p->options = o;
    ravel_status status = join(p, comm, address, root, taken == RAVEL_OK ? &own : NULL);
    if (status == RAVEL_OK)
        status = ravel_agree(p->comm, taken == RAVEL_OK ? prepare(p, address, root, source, &own) : taken, &own);
    if (status == RAVEL_OK) status = make_directory(p, &own);
    if (status == RAVEL_OK) status = ravel_agree(p->comm, start(p, &own), &own);
    if (status != RAVEL_OK) {
        ravel_publisher_free(p);
        return ravel_error_set(err, status, "%s", own.message);
    }
    *publisher = p;
    return RAVEL_OK;
}

void ravel_publisher_free(ravel_publisher *p) {
    if (!p) return;
    const ravel_allocator *own = &p->memory.allocator, *allocator = p->memory.inner;
    ravel__server_close(&p->server);
    ravel__store_free(&p->store);
    ravel__release(own, p->directory_bytes, p->directory_size);
    ravel__holding_free(&p->holding, own);
    ravel__arena_free(&p->arena);
    ravel_comm_free(p->comm);
    ravel__release(allocator, p, sizeof *p);
}

/* ---- publish -------------------------------------------------------------------------------------------- */

/* Each rank's part of a version's identity: the nonce is rank 0's, the digest is of all. */
typedef struct share {
    int64_t version;
    uint64_t nonce, digest;
} share;

static ravel_status agree_on(ravel_publisher *p, const share *mine, ravel_refit_identity *identity, ravel_error *err) {
    RAVEL_ASSERT(mine->nonce != 0);
    size_t bytes = (size_t)p->ranks * sizeof *mine;
    ravel__xxh3 digest;
    share *all = ravel__alloc(&p->memory.allocator, bytes);
    ravel_status status = all ? RAVEL_OK : ravel__no_memory(err, bytes, "the trainers' digests");
    status = ravel_agree(p->comm, status, err);
    RAVEL_ASSERT(status != RAVEL_OK || all);
    ravel__xxh3_begin(&digest);
    if (status == RAVEL_OK) status = ravel_comm_allgather(p->comm, mine, all, (int64_t)sizeof *mine, RAVEL_U8, err);
    for (int32_t r = 0; status == RAVEL_OK && r < p->ranks; r++) {
        ravel__xxh3_add(&digest, &all[r].digest, sizeof all[r].digest);
        if (all[r].version != all[0].version)
            status = ravel_error_set(err, RAVEL_E_MISMATCH, "version %lld on trainer rank 0, %lld on rank %d",
                                     (long long)all[0].version, (long long)all[r].version, r);
    }
    if (status == RAVEL_OK) *identity = (ravel_refit_identity){all[0].version, all[0].nonce, ravel__xxh3_end(&digest)};
    ravel__release(&p->memory.allocator, all, bytes);
    return status;
}

/* Versions that the connected generator furthest behind lacks. */
static int64_t furthest_behind(ravel_publisher *p) {
    int64_t lag = 0;
    pthread_mutex_lock(&p->server.report_lock);
    for (int64_t i = 0; i < p->server.report_count; i++) {
        const ravel__reported *r = &p->server.reports[i];
        int64_t lacks = r->from ? ravel__store_newer(&p->store, r->report.held.version) : 0;
        if (lacks > lag) lag = lacks;
    }
    pthread_mutex_unlock(&p->server.report_lock);
    return lag;
}

ravel_status ravel_publisher_publish(ravel_publisher *p, int64_t version, ravel_error *err) {
    ravel_error own = RAVEL_ERROR_INIT;
    int64_t began = ravel__clock_ns(), lag = furthest_behind(p);
    share mine = {.version = version, .nonce = ravel__fresh_nonce()};
    ravel_refit_identity identity = {0};
    ravel_status status = RAVEL_OK;
    int32_t slot = -1;
    if (version <= p->last)
        status = ravel_error_set(&own, RAVEL_E_ARGUMENT, "version %lld; it must be above the last one, %lld",
                                 (long long)version, (long long)p->last);
    if (status == RAVEL_OK) {
        slot = ravel__store_claim(&p->store);
        RAVEL_ASSERT(slot >= 0 && slot < p->options.keep);
        int64_t copied = ravel__clock_ns();
        status = ravel__store_fill(&p->store, slot, &p->source_copy, p->threads, &mine.digest, &own);
        p->copy_seconds = (double)(ravel__clock_ns() - copied) * 1e-9;
    }
    status = ravel_agree(p->comm, status, &own);
    if (status == RAVEL_OK) status = agree_on(p, &mine, &identity, &own);
    if (status != RAVEL_OK) return ravel_error_set(err, status, "%s", own.message);
    /* Rank 0 announces the version to generators, so it shows it last. */
    RAVEL_ASSERT(slot >= 0 && identity.version == version);
    if (p->rank > 0) ravel__store_show(&p->store, slot, identity);
    if (p->ranks > 1) status = ravel_comm_barrier(p->comm, err);
    if (status != RAVEL_OK) return status;
    if (p->rank == 0) ravel__store_show(&p->store, slot, identity);
    p->last = version;
    p->lag = lag;
    p->total_seconds = (double)(ravel__clock_ns() - began) * 1e-9;
    return RAVEL_OK;
}

/* ---- small calls ---------------------------------------------------------------------------------------- */

const char *ravel_publisher_address(const ravel_publisher *p) {
    return p->root;
}

ravel_refit_identity ravel_publisher_newest(ravel_publisher *p) {
    ravel_refit_identity list[RAVEL__STORE_KEEP_MOST];
    return ravel__store_list(&p->store, list) > 0 ? list[0] : (ravel_refit_identity){0};
}

int64_t ravel_publisher_version_bytes(const ravel_publisher *p) {
    return p->store.tiles.bytes;
}

void ravel_publisher_seconds(const ravel_publisher *p, double *total, double *copy) {
    *total = p->total_seconds;
    *copy = p->copy_seconds;
}

static ravel_generator_report report_of(ravel_publisher *p, const ravel__reported *from, int64_t now) {
    const ravel__pull_report *r = &from->report;
    return (ravel_generator_report){.generator = r->generator,
                                    .held = r->held,
                                    .lag = ravel__store_newer(&p->store, r->held.version),
                                    .ranks = r->ranks,
                                    .connected = from->from != NULL,
                                    .prepare_seconds = r->prepare_seconds,
                                    .pause_seconds = r->pause_seconds,
                                    .tokens_per_second = r->tokens_per_second,
                                    .bytes = r->bytes,
                                    .commits = r->commits,
                                    .bytes_needed = r->needed,
                                    .changed_share = r->changed_share,
                                    .age_seconds = (double)(now - from->at_ns) * 1e-9};
}

/* Puts a report in its place among `count` that are in order, of which at most `most` are kept. */
static void put_in_order(ravel_generator_report *reports, int64_t count, int64_t most,
                         const ravel_generator_report *r) {
    int64_t i = count < most ? count : most;
    for (; i > 0 && reports[i - 1].age_seconds > r->age_seconds; i--)
        if (i < most) reports[i] = reports[i - 1];
    if (i < most) reports[i] = *r;
}

int64_t ravel_publisher_generators(ravel_publisher *p, ravel_generator_report *reports, int64_t most) {
    if (!reports || most < 0) most = 0;
    pthread_mutex_lock(&p->server.report_lock);
    int64_t now = ravel__clock_ns(), count = p->server.report_count;
    for (int64_t i = 0; i < count && most > 0; i++) {
        ravel_generator_report r = report_of(p, &p->server.reports[i], now);
        put_in_order(reports, i, most, &r);
    }
    pthread_mutex_unlock(&p->server.report_lock);
    return count;
}

/* What was sent since the last call. */
static void count_sent(ravel_publisher *p, ravel_metrics *metrics) {
    ravel__tally *t = &p->server.tally;
    static const int32_t rows[RAVEL__BLOCK_KINDS] = {RAVEL_METRIC_REFIT_BLOCKS_WHOLE, RAVEL_METRIC_REFIT_BLOCKS_KEPT,
                                                     RAVEL_METRIC_REFIT_BLOCKS_SPARSE};
    int64_t sent = 0, elements = atomic_exchange(&t->elements, 0), compared = atomic_exchange(&t->compared, 0);
    double changed = (double)atomic_exchange(&t->changed, 0), all = (double)elements, some = (double)compared;
    for (int32_t k = 0; k < RAVEL__BLOCK_KINDS; k++) {
        (void)ravel_metrics_count(metrics, rows[k], atomic_exchange(&t->blocks[k], 0));
        sent += atomic_exchange(&t->moved[k], 0);
    }
    (void)ravel_metrics_count(metrics, RAVEL_METRIC_REFIT_SENT, sent);
    if (elements > 0) (void)ravel_metrics_add(metrics, RAVEL_METRIC_REFIT_COMPARED, some / all, all);
    if (compared > 0) (void)ravel_metrics_add(metrics, RAVEL_METRIC_REFIT_CHANGED, changed / some, some);
}

void ravel_publisher_count(ravel_publisher *p, ravel_metrics *metrics) {
    int64_t connected = 0;
    double prepare = 0, pause = 0, tokens = 0;
    pthread_mutex_lock(&p->server.report_lock);
    for (int64_t i = 0; i < p->server.report_count; i++) {
        const ravel__pull_report *r = &p->server.reports[i].report;
        if (!p->server.reports[i].from) continue;
        connected++;
        prepare = r->prepare_seconds > prepare ? r->prepare_seconds : prepare;
        pause = r->pause_seconds > pause ? r->pause_seconds : pause;
        tokens += r->tokens_per_second;
    }
    pthread_mutex_unlock(&p->server.report_lock);
    (void)ravel_metrics_add(metrics, RAVEL_METRIC_REFIT_PUBLISH, p->total_seconds, 1);
    count_sent(p, metrics);
    if (p->rank != 0 || connected == 0) return; /* generators report to rank 0 */
    (void)ravel_metrics_count(metrics, RAVEL_METRIC_REFIT_GENERATORS, connected);
    (void)ravel_metrics_add(metrics, RAVEL_METRIC_REFIT_PREPARE, prepare, 1);
    (void)ravel_metrics_add(metrics, RAVEL_METRIC_REFIT_PAUSE, pause, 1);
    (void)ravel_metrics_add(metrics, RAVEL_METRIC_REFIT_VERSION_LAG, (double)p->lag, 1);
    (void)ravel_metrics_add(metrics, RAVEL_METRIC_REFIT_GENERATOR_TOKENS, tokens, 1);
}
