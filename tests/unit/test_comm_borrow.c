/* Borrowed messages: the receiver reads the sender's array, and the sender gets it back when that is said. */
#include "tests/unit/check.h"

#include "comm/backend.h"

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

static void sleep_ms(int64_t ms) {
    struct timespec t = {(time_t)(ms / 1000), (long)(ms % 1000 * 1000000)};
    (void)nanosleep(&t, NULL);
}

/* Two ranks of one process, both in the hands of the test. */
static bool make_pair(ravel_comm *comms[2]) {
    ravel_error err = RAVEL_ERROR_INIT;
    ravel_comm_options o;
    ravel_comm_options_default(&o);
    o.timeout = 30;
    return EXPECT(ravel_comm_threads(2, &o, comms, &err) == RAVEL_OK);
}

/* Whoever comes first: the array is the sender's own, and its request ends when the loan does. */
TEST(comm_borrow_is_the_senders_array) {
    for (int first = 0; first < 2; first++) {
        ravel_comm *comms[2];
        ravel_request *send = NULL, *recv = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        char data[100] = "a message";
        ravel__loan loan;
        int32_t done;
        CHECK(make_pair(comms));
        CHECK(ravel__comm_lends(comms[0]));
        for (int turn = 0; turn < 2; turn++) {
            if (turn == first) CHECK_OK(ravel_comm_isend(comms[0], data, 100, RAVEL_U8, 1, 7, &send, &err), &err);
            if (turn != first) CHECK_OK(ravel__comm_iborrow(comms[1], &loan, 100, 0, 7, &recv, &err), &err);
        }
        CHECK_OK(ravel_request_wait(recv, &err), &err);
        CHECK(loan.data == data && loan.lender);
        CHECK_OK(ravel_request_test(send, &done, &err), &err);
        CHECK_EQ(done, 0);
        ravel__comm_give_back(comms[1], &loan);
        CHECK(!loan.data && !loan.lender);
        ravel__comm_give_back(comms[1], &loan); /* of nothing */
        CHECK_OK(ravel_request_test(send, &done, &err), &err);
        CHECK_EQ(done, 1);
        ravel_comm_free(comms[0]);
        ravel_comm_free(comms[1]);
    }
}

/* Another length is a mismatch on both sides, and nothing is lent. */
TEST(comm_borrow_of_another_length) {
    ravel_comm *comms[2];
    ravel_request *send = NULL, *recv = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    char data[100];
    ravel__loan loan;
    CHECK(make_pair(comms));
    CHECK_OK(ravel_comm_isend(comms[0], data, 99, RAVEL_U8, 1, 7, &send, &err), &err);
    CHECK_OK(ravel__comm_iborrow(comms[1], &loan, 100, 0, 7, &recv, &err), &err);
    CHECK_EQ(ravel_request_wait(recv, NULL), RAVEL_E_MISMATCH);
    CHECK_EQ(ravel_request_wait(send, NULL), RAVEL_E_MISMATCH);
    CHECK(!loan.data && !loan.lender);
    ravel_comm_free(comms[0]);
    ravel_comm_free(comms[1]);
}

typedef struct lender {
    ravel_comm *comm;
    _Atomic int32_t freed;
} lender;

static void *free_lender(void *argument) {
    lender *l = argument;
    ravel_comm_free(l->comm);
    atomic_store(&l->freed, 1);
    return NULL;
}

/* A sender that leaves waits for what it has lent; a receiver that leaves without having looked gives back by itself. */
TEST(comm_borrow_outlives_neither_side) {
    for (int looked = 0; looked < 2; looked++) {
        ravel_comm *comms[2];
        ravel_request *send = NULL, *recv = NULL;
        ravel_error err = RAVEL_ERROR_INIT;
        char data[100];
        ravel__loan loan;
        pthread_t thread;
        CHECK(make_pair(comms));
        CHECK_OK(ravel_comm_isend(comms[0], data, 100, RAVEL_U8, 1, 7, &send, &err), &err);
        CHECK_OK(ravel__comm_iborrow(comms[1], &loan, 100, 0, 7, &recv, &err), &err);
        if (looked) CHECK_OK(ravel_request_wait(recv, &err), &err);
        lender l = {.comm = comms[0]};
        CHECK_EQ(pthread_create(&thread, NULL, free_lender, &l), 0);
        sleep_ms(20);
        CHECK_EQ(atomic_load(&l.freed), 0);
        if (looked) ravel__comm_give_back(comms[1], &loan);
        ravel_comm_free(comms[1]);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    }
}

TEST(comm_borrow_where_nothing_is_lent) {
    ravel_comm *comm = NULL;
    ravel_request *recv = NULL;
    ravel_error err = RAVEL_ERROR_INIT;
    ravel__loan loan;
    CHECK_OK(ravel_comm_self(NULL, &comm, &err), &err);
    CHECK(!ravel__comm_lends(comm));
    CHECK_EQ(ravel__comm_iborrow(comm, &loan, 10, 0, 0, &recv, &err), RAVEL_E_UNSUPPORTED);
    CHECK_HAS(err.message, "over self cannot be borrowed");
    ravel_comm_free(comm);
}
