#include "comm/launch.h"

#include "base/assert.h"
#include "base/number.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the environment ------------------------------------------------------------------------------------ */

static const char *word_of(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

/* A whole number of 0 .. most, -1 where it is none. */
static int64_t number_of(const char *name, int64_t most) {
    const char *text = word_of(name);
    char *end = NULL;
    if (!text || text[0] < '0' || text[0] > '9') return -1;
    long long value = strtoll(text, &end, 10);
    return *end || value < 0 || value > most ? -1 : value;
}

/* A Slurm batch script has these variables too, but is not a rank. */
static int is_slurm(void) {
    const char *environment = word_of("ENVIRONMENT");
    int is_step = word_of("SLURM_STEP_ID") || word_of("SLURM_STEPID");
    int is_batch = environment && strcmp(environment, "BATCH") == 0;
    return number_of("SLURM_PROCID", 1 << 30) >= 0 && number_of("SLURM_NTASKS", 1 << 30) > 1 &&
           (word_of("SLURM_NODELIST") || word_of("SLURM_STEP_NODELIST")) && (is_step || !is_batch);
}

static int is_torchrun(void) {
    return number_of("RANK", 1 << 30) >= 0 && number_of("WORLD_SIZE", 1 << 30) > 1 && word_of("MASTER_ADDR");
}

const char *ravel__launch_kind(const ravel_comm_options *o) {
    const char *asked = o && o->comm && *o->comm ? o->comm : "auto";
    if (strcmp(asked, "auto") != 0) return asked;
    if (o && ((o->rendezvous && *o->rendezvous) || o->ranks > 0)) return "tcp";
    if (ravel__launch_has_mpi()) return "mpi";
    return is_slurm() || is_torchrun() ? "tcp" : "self";
}

/* ---- where ---------------------------------------------------------------------------------------------- */

/* The first host of Slurm's "node[01-03,7],other"; 0 if it has none that fits. */
static int first_host(const char *list, char *host, size_t bytes) {
    size_t length = strcspn(list, ",["), digits = list[length] == '[' ? strcspn(list + length + 1, ",-]") : 0;
    if (length + digits == 0 || length + digits >= bytes) return 0;
    memcpy(host, list, length);
    memcpy(host + length, list + length + 1, digits);
    RAVEL_ASSERT(length + digits < bytes);
    host[length + digits] = '\0';
    return 1;
}

static ravel_status join(ravel__launch *l, const char *host, int64_t port, ravel_error *err) {
    int colon = strchr(host, ':') != NULL;
    if (port < 1 || port > 65535)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "port %lld is not valid; set RAVEL_PORT to one from 1 to 65535",
                               (long long)port);
    (void)snprintf(l->rendezvous, sizeof l->rendezvous, "%s%s%s:%lld", colon ? "[" : "", host, colon ? "]" : "",
                   (long long)port);
    return RAVEL_OK;
}

/* RAVEL_PORT; 0 if it is not set. */
static ravel_status port_of(int64_t *port, ravel_error *err) {
    const char *text = word_of("RAVEL_PORT");
    *port = text ? number_of("RAVEL_PORT", 65535) : 0;
    if (!text || *port > 0) return RAVEL_OK;
    return ravel_error_set(err, RAVEL_E_ARGUMENT,
                           "the environment's RAVEL_PORT is \"%.40s\"; it must be a port from 1 to 65535", text);
}

static ravel_status from_slurm(ravel__launch *l, ravel_error *err) {
    RAVEL_ASSERT(is_slurm());
    char host[256] = "127.0.0.1";
    const char *list = word_of("SLURM_STEP_NODELIST") ? word_of("SLURM_STEP_NODELIST") : word_of("SLURM_NODELIST");
    int64_t steps = number_of("SLURM_STEP_NUM_TASKS", 1 << 30), job = number_of("SLURM_JOB_ID", INT64_MAX / 2);
    int64_t port = 0, nodes = number_of("SLURM_NNODES", 1 << 30);
    ravel_status status = port_of(&port, err);
    l->by = "slurm";
    l->rank = (int32_t)number_of("SLURM_PROCID", 1 << 30);
    l->ranks = (int32_t)(steps > 0 ? steps : number_of("SLURM_NTASKS", 1 << 30));
    if (status) return status;
    if (nodes != 1 && !first_host(list, host, sizeof host))
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "SLURM_NODELIST \"%.60s\" names no host", list);
    return join(l, host, port > 0 ? port : 20000 + (job > 0 ? job : 0) % 20000, err);
}

/* torchrun's agent listens on MASTER_PORT itself. */
static ravel_status from_torchrun(ravel__launch *l, ravel_error *err) {
    RAVEL_ASSERT(is_torchrun());
    int64_t port = 0, master = number_of("MASTER_PORT", 65535);
    ravel_status status = port_of(&port, err);
    int alone = number_of("LOCAL_WORLD_SIZE", 1 << 30) == number_of("WORLD_SIZE", 1 << 30);
    l->by = "torchrun";
    l->rank = (int32_t)number_of("RANK", 1 << 30);
    l->ranks = (int32_t)number_of("WORLD_SIZE", 1 << 30);
    if (status) return status;
    if (port <= 0 && master <= 0)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "RANK and WORLD_SIZE are set, but neither RAVEL_PORT nor "
                               "MASTER_PORT says where the ranks meet");
    return join(l, alone ? "127.0.0.1" : word_of("MASTER_ADDR"), port > 0 ? port : master + 1, err);
}

ravel_status ravel__launch_find(const ravel_comm_options *o, ravel__launch *l, ravel_error *err) {
    int has_rendezvous = o->rendezvous && *o->rendezvous;
    ravel_status status = RAVEL_OK;
    memset(l, 0, sizeof *l);
    l->by = "option";
    l->rank = -1;
    if (is_slurm())
        status = from_slurm(l, err);
    else if (is_torchrun())
        status = from_torchrun(l, err);
    if (status && !has_rendezvous) return status;
    if (status && err) ravel_error_clear(err);
    if (has_rendezvous && strlen(o->rendezvous) >= sizeof l->rendezvous)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "the rendezvous \"%.60s...\" has %zu characters; the limit is %zu", o->rendezvous,
                               strlen(o->rendezvous), sizeof l->rendezvous - 1);
    if (has_rendezvous) (void)snprintf(l->rendezvous, sizeof l->rendezvous, "%s", o->rendezvous);
    if (o->ranks > 0 && o->ranks != l->ranks) l->ranks = o->ranks, l->rank = -1; /* another world than the launcher's */
    if (o->rank >= 0) l->rank = o->rank;
    if (!l->rendezvous[0])
        return ravel_error_set(
            err, RAVEL_E_ARGUMENT,
            "where do the ranks meet? Give a rendezvous (host:port or file:/path), or start them with "
            "srun or torchrun");
    if (l->ranks < 1)
        return ravel_error_set(err, RAVEL_E_ARGUMENT,
                               "how many ranks are there? Give comm-ranks, or start them with srun or torchrun");
    if (l->rank >= l->ranks)
        return ravel_error_set(err, RAVEL_E_ARGUMENT, "rank %d is out of range for %d ranks; ranks count from 0",
                               l->rank, l->ranks);
    RAVEL_ASSERT(l->rank >= -1);
    return RAVEL_OK;
}
