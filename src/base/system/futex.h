/* Sleeping on a word, for waiting threads.
 *
 *     waiter                                       waker
 *     seen = load(word)                            change the state
 *     if (the state is what I wait for) return     word++
 *     ravel__futex_wait(word, seen, deadline)      ravel__futex_wake(word)
 *     again
 *
 * Since the waiter reads the word before it looks at the state, a change in between makes the sleep return at once:
 * no wake-up is lost. Wake-ups without a reason happen; always look again. */
#ifndef RAVEL_BASE_FUTEX_H
#define RAVEL_BASE_FUTEX_H

#include <stdatomic.h>
#include <stdint.h>

/* Returns when the word is no longer `seen`, was woken, or the monotonic clock has passed deadline_ns. */
void ravel__futex_wait(_Atomic uint32_t *word, uint32_t seen, int64_t deadline_ns);
/* Wakes every thread that sleeps on the word. The word's memory may already be freed when this runs. */
void ravel__futex_wake(_Atomic uint32_t *word);

/* Tells the processor that this is a short busy wait. */
static inline void ravel__cpu_relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

#endif
