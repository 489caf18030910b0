/* Broadcast trees: node 0 is the sender, node i + 1 the i-th member of the group that takes part; the children of node
 * n are n * fanout + 1 .. n * fanout + fanout.
 *
 *     fanout 1:  sender - a - b - c - d          fanout 2:  sender - a - c
 *                                                                 |    ` d
 *                                                                 ` b
 *
 * A receiver passes each frame on as it came, while it loads it. */
#include "refit/session/session.h"

#include "base/assert.h"

static int32_t auto_fanout(const ravel_refit *refit, const ravel__stream *s, int32_t members) {
    RAVEL_ASSERT(refit->terms.buffer_bytes > 0 && members >= 0);
    int64_t frames = s->bytes / refit->terms.buffer_bytes + 1;
    return frames >= 2 * (int64_t)members ? 1 : 2; /* a chain fills slower, then moves twice as much */
}

/* The rank at a node; -1: the tree has fewer nodes. */
static int32_t node_rank(const ravel__stream *s, const char *skip, int32_t node) {
    RAVEL_ASSERT(node >= 0);
    if (node == 0) return s->sender;
    for (int32_t i = 0; i < s->member_count; i++)
        if (!skip[s->members[i]] && --node == 0) return s->members[i];
    return -1;
}

/* The node of a rank, -1: it is not in the tree; and how many members take part. */
static int32_t node_of(const ravel__stream *s, const char *skip, int32_t rank, int32_t *members) {
    int32_t node = rank == s->sender ? 0 : -1;
    *members = 0;
    for (int32_t i = 0; i < s->member_count; i++) {
        if (skip[s->members[i]]) continue;
        ++*members;
        if (s->members[i] == rank && !s->local) node = *members;
    }
    return node;
}

static int32_t list_children(const ravel_refit *refit, const ravel__stream *s, const char *skip, int32_t *children) {
    int32_t members, count = 0, node = node_of(s, skip, refit->rank, &members);
    int32_t fanout = auto_fanout(refit, s, members);
    RAVEL_ASSERT(node >= 0 && fanout >= 1 && fanout <= RAVEL__FANOUT_MOST);
    for (int32_t i = 1; i <= fanout; i++) {
        int32_t child = node * fanout + i;
        if (child <= members) children[count++] = node_rank(s, skip, child);
    }
    RAVEL_ASSERT(count <= RAVEL__FANOUT_MOST && count <= members);
    return count;
}

void ravel__refit_trees(ravel_refit *refit, const char *skip, char *active_out, char *active_in) {
    int32_t members;
    for (int32_t i = 0; i < refit->streams.out_count; i++) {
        const ravel__stream *s = &refit->streams.out[i];
        ravel__out_state *o = &refit->out_states[i];
        (void)node_of(s, skip, refit->rank, &members);
        active_out[i] = members > 0;
        o->child_count = s->local ? 0 : list_children(refit, s, skip, o->children);
        o->local_in = -1;
        for (int32_t j = 0; j < refit->streams.in_count && s->local; j++)
            if (refit->streams.in[j].local) o->local_in = j;
        RAVEL_ASSERT(!s->local || o->local_in >= 0);
    }
    for (int32_t i = 0; i < refit->streams.in_count; i++) {
        const ravel__stream *s = &refit->streams.in[i];
        ravel__in_state *in = &refit->in_states[i];
        active_in[i] = !skip[refit->rank];
        *in = (ravel__in_state){.active = active_in[i] && !s->local, .ended = !active_in[i] || s->local};
        if (!in->active) continue;
        int32_t node = node_of(s, skip, refit->rank, &members), fanout = auto_fanout(refit, s, members);
        in->parent = node_rank(s, skip, (node - 1) / fanout);
        RAVEL_ASSERT(node > 0 && in->parent >= 0 && in->parent != refit->rank);
        in->child_count = list_children(refit, s, skip, in->children);
    }
}
