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

/* The stream's nodes that take part, into nodes[1 + member_count]; returns how many, and this rank's in *own (-1: it
 * does not). */
static int32_t list_nodes(const ravel_refit *refit, const ravel__stream *s, const char *skip, int32_t *nodes,
                          int32_t *own) {
    int32_t count = 0;
    nodes[count++] = s->sender;
    for (int32_t i = 0; i < s->member_count; i++)
        if (!skip[s->members[i]]) nodes[count++] = s->members[i];
    *own = -1;
    for (int32_t i = 0; i < count && *own < 0; i++)
        if (nodes[i] == refit->rank) *own = i;
    return count;
}

static int32_t list_children(const int32_t *nodes, int32_t count, int32_t own, int32_t fanout, int32_t *children) {
    int32_t found = 0;
    RAVEL_ASSERT(own >= 0 && fanout >= 1 && fanout <= RAVEL__FANOUT_MOST);
    for (int32_t child = own * fanout + 1; child <= own * fanout + fanout && child < count; child++)
        children[found++] = nodes[child];
    return found;
}

void ravel__refit_trees(ravel_refit *refit, const char *skip, int32_t *nodes, char *active_out, char *active_in) {
    int32_t own;
    for (int32_t i = 0; i < refit->streams.out_count; i++) {
        const ravel__stream *s = &refit->streams.out[i];
        ravel__out_state *o = &refit->out_states[i];
        int32_t count = list_nodes(refit, s, skip, nodes, &own);
        active_out[i] = count > 1;
        o->child_count = s->local ? 0 : list_children(nodes, count, own, auto_fanout(refit, s, count - 1), o->children);
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
        int32_t count = list_nodes(refit, s, skip, nodes, &own), fanout = auto_fanout(refit, s, count - 1);
        RAVEL_ASSERT(own > 0);
        in->parent = nodes[(own - 1) / fanout];
        in->child_count = list_children(nodes, count, own, fanout, in->children);
    }
}
