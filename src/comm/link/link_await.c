/* Waiting for one link alone.
 *
 * A thread that waits for one peer would call epoll_wait, then recvmsg. Here it calls recv once, which waits. The
 * socket and the free buffer of the link are lent to it for that time:
 *
 *     lend    the hub's thread     NONE -> LENT    ravel__link_read leaves the link alone
 *     await   the thread that waits                recv, RAVEL__AWAIT_NS at most (SO_RCVTIMEO)
 *                                  LENT -> BACK
 *     poll    the hub's thread     BACK -> NONE    parses what came
 *
 * Other links are served at most RAVEL__AWAIT_NS late. A link that is lost while it is lent is shut down, which ends
 * the read. Its descriptor and memory are kept until it is back, so that the descriptor is not reused for another
 * socket. */
#include "comm/link/link_state.h"

#include "base/assert.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

void ravel__link_may_wait(const ravel__link *link) {
    RAVEL_ASSERT(link->fd >= 0);
    struct timeval most = {.tv_usec = RAVEL__AWAIT_NS / 1000};
    int flags = fcntl(link->fd, F_GETFL);
    if (setsockopt(link->fd, SOL_SOCKET, SO_RCVTIMEO, &most, sizeof most) == 0 && flags >= 0)
        (void)fcntl(link->fd, F_SETFL, flags & ~O_NONBLOCK); /* all other calls say MSG_DONTWAIT */
}

int ravel__link_lend(ravel__link *link) {
    link_loan *loan = &link->hub->loan;
    if (loan->link || link->tls || link->state != LINK_UP || link->write_failed || link->first || link->wants_out ||
        link->stage != IN_HEAD || link->in_at != link->in_end)
        return 0;
    RAVEL_ASSERT(__atomic_load_n(&loan->state, __ATOMIC_RELAXED) == LOAN_NONE && link->fd >= 0);
    *loan = (link_loan){.link = link, .fd = link->fd, .at = link->in, .room = LINK_IN_BYTES, .given = {-1, -1}};
    loan->takes = !link->is_tcp;
    __atomic_store_n(&loan->state, LOAN_LENT, __ATOMIC_RELEASE);
    return 1;
}

void ravel__hub_await(ravel__hub *hub) {
    link_loan *loan = &hub->loan;
    RAVEL_ASSERT(__atomic_load_n(&loan->state, __ATOMIC_ACQUIRE) == LOAN_LENT);
    RAVEL_ASSERT(loan->link && loan->fd >= 0 && loan->room > 0);
    struct iovec list = {loan->at, loan->room};
    loan->got = ravel__link_recv(loan->fd, &list, 1, 0, loan->takes, loan->given);
    loan->error = errno;
    __atomic_store_n(&loan->state, LOAN_BACK, __ATOMIC_RELEASE);
}

void ravel__hub_take_back(ravel__hub *hub) {
    link_loan *loan = &hub->loan;
    if (__atomic_load_n(&loan->state, __ATOMIC_ACQUIRE) != LOAN_BACK) return;
    ravel__link *link = loan->link;
    RAVEL_ASSERT(link && link->hub == hub && loan->got <= (ssize_t)loan->room);
    RAVEL_ASSERT(link->in_at == link->in_end && link->stage == IN_HEAD); /* nobody read meanwhile */
    loan->link = NULL;
    loan->state = LOAN_NONE;
    for (int i = 0; i < 2; i++)
        if (loan->given[i] >= 0 && link->given[i] >= 0)
            (void)close(loan->given[i]);
        else if (loan->given[i] >= 0)
            link->given[i] = loan->given[i];
    if (link->state == LINK_CLOSED) {
        (void)close(loan->fd);
        ravel__rings_free(link);
    } else {
        ravel__link_took(link, loan->got, loan->error);
    }
}

void ravel__link_close_fd(ravel__link *link) {
    if (link->fd >= 0 && ravel__link_is_lent(link)) {
        (void)epoll_ctl(link->hub->epoll, EPOLL_CTL_DEL, link->fd, NULL);
        (void)shutdown(link->fd, SHUT_RDWR);
    } else if (link->fd >= 0) {
        (void)close(link->fd); /* which also takes it from epoll */
    }
    link->fd = -1;
}
