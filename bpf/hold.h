/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* Holding the bound against what an application sets later. */
#ifndef SOCKHEALTH_HOLD_H
#define SOCKHEALTH_HOLD_H

#include "set.h"

/* How long after a pass of the guard the next one is waited for: longer than it takes. */
#define SH_GUARD_S 30

/* bpf_setsockopt may be called from setsockopt programs (Linux >= 5.15). */
const volatile bool can_set_others = true;

/* Which of the options is at hand: masks, one of them set. */
struct sh_which {
	__u32 keepalive;
	__u32 idle;
	__u32 interval;
	__u32 count;
	__u32 user_timeout;
};

static __always_inline void which_option(int level, int name, struct sh_which *is)
{
	__u32 tcp = ~if_equal(level, SOL_SOCKET);

	is->keepalive = ~tcp;
	is->idle = tcp & if_equal(name, TCP_KEEPIDLE);
	is->interval = tcp & if_equal(name, TCP_KEEPINTVL);
	is->count = tcp & if_equal(name, TCP_KEEPCNT);
	is->user_timeout = tcp & if_equal(name, TCP_USER_TIMEOUT);
}

/* Puts what the application asks for into its wish; false: not a valid wish. */
static __always_inline bool wish(struct sh_options *app, const struct sh_which *is, int value)
{
	__u32 seconds = is->idle | is->interval, times = is->count;
	/* The kernel takes any for keepalive, and from 0 on for the user timeout. */
	__u32 most =
		(seconds & 32767) | (times & 127) | (is->user_timeout & 0x7fffffff) | is->keepalive;
	__u32 least = (seconds | times) & 1;

	app->keepalive = choose_if(is->keepalive, if_any(value) & 1, app->keepalive);
	app->idle_s = choose_if(is->idle, value, app->idle_s);
	app->interval_s = choose_if(is->interval, value, app->interval_s);
	app->count = choose_if(is->count, value, app->count);
	app->user_timeout_ms = choose_if(is->user_timeout, value, app->user_timeout_ms);
	app->asked |= is->keepalive & 1 << SH_OPT_KEEPALIVE;
	app->asked |= is->user_timeout & 1 << SH_OPT_USER_TIMEOUT;
	return (__u32)value - least <= most - least;
}

/* The value of one option in a set. */
static __always_inline int option_value(const struct sh_options *o, const struct sh_which *is)
{
	return (o->keepalive & is->keepalive) | (o->idle_s & is->idle) |
	       (o->interval_s & is->interval) | (o->count & is->count) |
	       (o->user_timeout_ms & is->user_timeout);
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
					const struct sh_which *is)
{
	to->keepalive = choose_if(is->keepalive, from->keepalive, to->keepalive);
	to->idle_s = choose_if(is->idle, from->idle_s, to->idle_s);
	to->interval_s = choose_if(is->interval, from->interval_s, to->interval_s);
	to->count = choose_if(is->count, from->count, to->count);
	to->user_timeout_ms =
		choose_if(is->user_timeout, from->user_timeout_ms, to->user_timeout_ms);
}

/*
 * Kernels before 5.15 let this program rewrite only the option at hand: the user
 * timeout is raised until the rule holds with the others as they are, the others
 * get what they should have where it holds then, and are not loosened where not.
 */
static __always_inline void one_alone(const struct sh_record *rec, const struct sh_which *is,
				      struct sh_options *want)
{
	struct sh_options one = rec->effective;
	__u64 need;

	copy_option(&one, want, is);
	need = sh_need(&rec->policed, &one);
	if (is->user_timeout) {
		one.user_timeout_ms = sh_max(want->user_timeout_ms, need);
	} else if (one.user_timeout_ms < need) {
		one = rec->effective;
		want->idle_s = sh_min(want->idle_s, one.idle_s);
		want->interval_s = sh_min(want->interval_s, one.interval_s);
		want->count = sh_min(want->count, one.count);
		want->keepalive = one.keepalive;
		copy_option(&one, want, is);
	}
	one.keepalive = 1;
	*want = one;
}

/*
 * A connection that adoption has not brought in line yet gets the option at hand
 * alone, and no shorter user timeout, which might end it at once (T15): the rest
 * is adoption's.
 */
static __always_inline void at_hand(const struct sh_record *rec, const struct sh_which *is,
				    struct sh_options *want)
{
	struct sh_options one = rec->effective;

	if (!is->user_timeout || !sh_sooner(want->user_timeout_ms, one.user_timeout_ms))
		copy_option(&one, want, is);
	*want = one;
}

/*
 * Until the connection is made its user timeout bounds connect() and nothing else,
 * and the other options do nothing: they are as the application sets them.
 */
static __always_inline int hold_connect(struct sh_record *rec, const struct sh_which *is, int value)
{
	struct sh_options app = rec->app;

	if (!wish(&app, is, value))
		return value; /* the kernel will say EINVAL */
	rec->app = app;
	if (is->user_timeout)
		app.user_timeout_ms = sh_connect(rec->override, rec->connect_ms, value);
	copy_option(&rec->effective, &app, is);
	return option_value(&app, is);
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
	struct sh_which is;
	int held;

	if (name == TCP_RTO_MAX_MS)
		return hold_rto_max(rec, value);
	which_option(level, name, &is);
	if (rec->flags & SH_CONNECTING)
		return hold_connect(rec, &is, value);
	if (!wish(&app, &is, value))
		return value; /* the kernel will say EINVAL */
	/* What tightening would make of it tells what allowing lets through. */
	raised = sh_combine(allow ? SH_TIGHTEN : rec->override, &rec->policed, &app, &next);
	held = option_value(&next, &is);
	if (allow) {
		next = rec->effective;
		copy_option(&next, &app, &is);
	} else if (rec->flags & SH_PENDING) {
		at_hand(rec, &is, &next);
		held = option_value(&next, &is);
	} else if (!can_set_others && rec->override == SH_TIGHTEN) {
		one_alone(rec, &is, &next);
		held = option_value(&next, &is);
	} else if (can_set_others) {
		/* All but the one that the kernel is about to set itself. */
		same = rec->effective;
		copy_option(&same, &next, &is);
		if (guarded) /* which sets it when it is over */
			same.user_timeout_ms = next.user_timeout_ms;
		if (rec->room) /* likewise */
			same.count = next.count;
		set_options(sk, &same, &next);
	}
	rec->app = app;
	rec->effective = next;
	rec->held_ms = bpf_ktime_get_ns() / 1000000;
	count_held(rec, raised, held == value);
	if (guarded && is.user_timeout)
		return rec->guard_ms;
	held = allow ? value : held;
	/* As is the room of a judgement: fewer could be none (room.h). */
	return rec->room && is.count ? sh_max(held, rec->room) : held;
}

#endif
