/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Holding the bound against what an application sets later. */
#ifndef SOCKHEALTH_HOLD_H
#define SOCKHEALTH_HOLD_H

#include "set.h"

/* How long after a pass of the guard the next one is waited for: longer than it takes. */
#define SH_GUARD_S 30

/* bpf_setsockopt may be called from setsockopt programs (Linux >= 5.15). */
const volatile bool can_set_others = true;

/* Puts what the application asks for into its wish; false: not a valid wish. */
static __always_inline bool wish(struct sh_options *app, int level, int name, int value)
{
	if (level == SOL_SOCKET) {
		app->keepalive = !!value;
		app->asked |= 1 << SH_OPT_KEEPALIVE;
		return true;
	}
	switch (name) {
	case TCP_KEEPIDLE:
		app->idle_s = value;
		return value >= 1 && value <= 32767;
	case TCP_KEEPINTVL:
		app->interval_s = value;
		return value >= 1 && value <= 32767;
	case TCP_KEEPCNT:
		app->count = value;
		return value >= 1 && value <= 127;
	case TCP_USER_TIMEOUT:
		app->user_timeout_ms = value;
		app->asked |= 1 << SH_OPT_USER_TIMEOUT;
		return value >= 0;
	}
	return false;
}

/* The value of one option in a set. */
static __always_inline int option_value(const struct sh_options *o, int level, int name)
{
	if (level == SOL_SOCKET)
		return o->keepalive;
	switch (name) {
	case TCP_KEEPIDLE:
		return o->idle_s;
	case TCP_KEEPINTVL:
		return o->interval_s;
	case TCP_KEEPCNT:
		return o->count;
	}
	return o->user_timeout_ms;
}

static __always_inline bool is_ours(int level, int name)
{
	if (level == SOL_SOCKET)
		return name == SO_KEEPALIVE;
	return level == SOL_TCP &&
	       (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL || name == TCP_KEEPCNT ||
		name == TCP_USER_TIMEOUT || name == TCP_RTO_MAX_MS);
}

/* Puts one option of a set into another. */
static __always_inline void copy_option(struct sh_options *to, const struct sh_options *from,
					int level, int name)
{
	if (level == SOL_SOCKET)
		to->keepalive = from->keepalive;
	else if (name == TCP_KEEPIDLE)
		to->idle_s = from->idle_s;
	else if (name == TCP_KEEPINTVL)
		to->interval_s = from->interval_s;
	else if (name == TCP_KEEPCNT)
		to->count = from->count;
	else
		to->user_timeout_ms = from->user_timeout_ms;
}

/*
 * Kernels before 5.15 let this program rewrite only the option at hand: the user
 * timeout is raised until the rule holds with the others as they are, the others
 * get what they should have where it holds then, and are not loosened where not.
 */
static __always_inline void one_alone(const struct sh_record *rec, int level, int name,
				      struct sh_options *want)
{
	struct sh_options one = rec->effective;
	__u64 need;

	copy_option(&one, want, level, name);
	need = sh_need(&rec->policed, &one);
	if (level == SOL_TCP && name == TCP_USER_TIMEOUT) {
		one.user_timeout_ms = sh_max(want->user_timeout_ms, need);
	} else if (one.user_timeout_ms < need) {
		one = rec->effective;
		if (name == TCP_KEEPIDLE)
			one.idle_s = sh_min(want->idle_s, one.idle_s);
		else if (name == TCP_KEEPINTVL)
			one.interval_s = sh_min(want->interval_s, one.interval_s);
		else if (name == TCP_KEEPCNT)
			one.count = sh_min(want->count, one.count);
	}
	one.keepalive = 1;
	*want = one;
}

/*
 * A connection that adoption has not brought in line yet gets the option at hand
 * alone, and no shorter user timeout, which might end it at once (T15): the rest
 * is adoption's.
 */
static __always_inline void at_hand(const struct sh_record *rec, int level, int name,
				    struct sh_options *want)
{
	struct sh_options one = rec->effective;

	if (level != SOL_TCP || name != TCP_USER_TIMEOUT ||
	    !sh_sooner(want->user_timeout_ms, one.user_timeout_ms))
		copy_option(&one, want, level, name);
	*want = one;
}

/*
 * Until the connection is made its user timeout bounds connect() and nothing else,
 * and the other options do nothing: they are as the application sets them.
 */
static __always_inline int hold_connect(struct sh_record *rec, int level, int name, int value)
{
	struct sh_options app = rec->app;

	if (!wish(&app, level, name, value))
		return value; /* the kernel will say EINVAL */
	rec->app = app;
	if (level == SOL_TCP && name == TCP_USER_TIMEOUT)
		app.user_timeout_ms = sh_connect(rec->override, rec->connect_ms, value);
	copy_option(&rec->effective, &app, level, name);
	return option_value(&app, level, name);
}

/*
 * Whether the guard has the user timeout in its hand. Where no pass comes any more the
 * application's holds. A global function: what it decides the verifier does not follow.
 */
__noinline int sh_in_guard(__u32 flags, __u32 guard_s)
{
	__u16 since = (__u16)(bpf_ktime_get_ns() / 1000000000) - (__u16)guard_s;

	return flags & SH_GUARDED && since < SH_GUARD_S;
}

/*
 * The limit of the retransmission timeout where it stands in for the user timeout: the
 * application may have a lower one. What it asked for comes back when ours is over.
 */
static __always_inline int hold_rto_max(struct sh_record *rec, int value)
{
	int limit = rec->effective.rto_max * 100;

	if (!rec->rto_was_ms || value < 1000 || value > 120000)
		return value; /* none of ours is set, or the kernel will say EINVAL */
	rec->rto_was_ms = value;
	return limit && limit < value && rec->override != SH_ALLOW ? limit : value;
}

/* Counts what became of a value: kept as it was asked for, or not. */
static __always_inline void count_held(const struct sh_record *rec, bool raised, bool kept)
{
	struct sh_counters *c = counters(rec->policy);
	bool allow = rec->override == SH_ALLOW;

	if (!c)
		return;
	if (raised && !allow)
		COUNT(c->override_raised, 1);
	if (kept)
		COUNT(c->override_kept, 1);
	else if (allow)
		COUNT(c->override_allowed, 1);
	else
		COUNT(c->override_held, 1);
}

/* Holds the bound; returns the value to set instead of the one asked for. */
static __always_inline int hold(struct bpf_sock *sk, struct sh_record *rec, int level, int name,
				int value)
{
	struct sh_options app = rec->app, next, same;
	bool raised, allow = rec->override == SH_ALLOW,
		     guarded = sh_in_guard(rec->flags, rec->guard_s);
	int held;

	if (name == TCP_RTO_MAX_MS)
		return hold_rto_max(rec, value);
	if (rec->flags & SH_CONNECTING)
		return hold_connect(rec, level, name, value);
	if (!wish(&app, level, name, value))
		return value; /* the kernel will say EINVAL */
	/* What tightening would make of it tells what allowing lets through. */
	raised = sh_combine(allow ? SH_TIGHTEN : rec->override, &rec->policed, &app, &next);
	held = option_value(&next, level, name);
	if (allow) {
		next = rec->effective;
		copy_option(&next, &app, level, name);
	} else if (rec->flags & SH_PENDING) {
		at_hand(rec, level, name, &next);
		held = option_value(&next, level, name);
	} else if (!can_set_others && rec->override == SH_TIGHTEN) {
		one_alone(rec, level, name, &next);
		held = option_value(&next, level, name);
	} else if (can_set_others) {
		/* All but the one that the kernel is about to set itself. */
		same = rec->effective;
		copy_option(&same, &next, level, name);
		if (guarded) /* which sets it when it is over */
			same.user_timeout_ms = next.user_timeout_ms;
		set_options(sk, &same, &next);
	}
	rec->app = app;
	rec->effective = next;
	rec->held_ms = bpf_ktime_get_ns() / 1000000;
	count_held(rec, raised, held == value);
	if (guarded && level == SOL_TCP && name == TCP_USER_TIMEOUT)
		return rec->guard_ms;
	return allow ? value : held;
}

#endif
