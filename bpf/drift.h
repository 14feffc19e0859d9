/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* What somebody changed behind the record. */
#ifndef SOCKHEALTH_DRIFT_H
#define SOCKHEALTH_DRIFT_H

#include "bring.h"
#include "room.h"

/* The counters of a policy, which may be gone. */
static __always_inline struct sh_counters *counters_of(__u32 policy)
{
	return bpf_map_lookup_elem(&sh_stats, &policy);
}

/*
 * Whether the user timeout is that of connect(): the application set one while the
 * connection was made, and what the setsockopt program had it set came after what
 * sockops did.
 */
static __always_inline bool is_connects(const struct sh_record *rec, const struct sh_options *now)
{
	return rec->connect_ms && now->user_timeout_ms == sh_connect(rec->override, rec->connect_ms,
								     rec->app.user_timeout_ms);
}

/* What is set differs from the record: somebody else set it, and wants it so. */
static __always_inline bool take_over(struct sh_record *rec, const struct sh_options *now)
{
	const struct sh_options *was = &rec->effective;
	bool same = same_options(was, now);

	if (now->keepalive != was->keepalive) {
		rec->app.keepalive = now->keepalive;
		rec->app.asked |= 1 << SH_OPT_KEEPALIVE;
	}
	if (now->user_timeout_ms != was->user_timeout_ms && !is_connects(rec, now)) {
		rec->app.user_timeout_ms = now->user_timeout_ms;
		rec->app.asked |= 1 << SH_OPT_USER_TIMEOUT;
	}
	if (now->idle_s != was->idle_s)
		rec->app.idle_s = now->idle_s;
	if (now->interval_s != was->interval_s)
		rec->app.interval_s = now->interval_s;
	if (now->count != was->count)
		rec->app.count = now->count;
	rec->effective = *now;
	return !same;
}

/*
 * Whether the options drifted. A call of the application that is under way has
 * moved the record and not yet the socket.
 */
__noinline int drifted(struct sh_record *rec, struct sh_options *now)
{
	struct sh_options meant;
	struct sh_counters *c;
	__u32 since;

	if (!rec || !now)
		return 0;
	meant = *now;
	without_prober(rec, &meant); /* one that is gone */
	since = (__u32)(bpf_ktime_get_ns() / 1000000) - rec->held_ms;
	if ((rec->held_ms && since < 1000) || !take_over(rec, &meant))
		return 0;
	c = counters_of(rec->policy);
	if (c)
		COUNT(c->drifted, 1);
	return 1;
}

/*
 * What is still the prober's after a pass: effective, as it is on the socket, is to say
 * what is meant. The rest is no longer.
 */
__noinline int keep_prober(struct sh_record *rec, struct sh_options *want)
{
	struct sh_options *is;
	__u32 idle, count;

	if (!rec || !want)
		return 0;
	is = &rec->effective;
	idle = if_any(rec->flags & SH_PROVOKED) & if_equal(is->idle_s, SH_PROVOKED_S) &
	       ~if_equal(want->idle_s, SH_PROVOKED_S);
	count = if_any(rec->room) & if_equal(is->count, rec->room) &
		~if_equal(want->count, rec->room);
	rec->flags &= ~(SH_PROVOKED & ~idle);
	rec->room &= count;
	is->idle_s = choose_if(idle, want->idle_s, is->idle_s);
	is->count = choose_if(count, want->count, is->count);
	return 0;
}

#endif
