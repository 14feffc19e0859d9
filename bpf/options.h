/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
/* The five options as data, and how an application's wish combines with a policy. */
#ifndef SOCKHEALTH_OPTIONS_H
#define SOCKHEALTH_OPTIONS_H

#include "mask.h"
#include "sockhealth.h"

/*
 * With a user timeout the kernel ignores TCP_KEEPCNT: k lost keepalives are
 * forgiven exactly if user_timeout > idle + k * interval. However few probes an
 * application asks for, room for this many is kept (or for the policy's count,
 * where that is smaller), so that two lost ones never end a healthy connection.
 */
#define SH_MIN_ROOM 3

static __always_inline __u32 sh_min(__u32 a, __u32 b)
{
	return choose_if(if_less(a, b), a, b);
}

static __always_inline __u32 sh_max(__u32 a, __u32 b)
{
	return choose_if(if_less(a, b), b, a);
}

/* A user timeout that ends a connection sooner than another; 0 never does. */
static __always_inline bool sh_sooner(__u32 a, __u32 b)
{
	return a && (!b || a < b);
}

/* The application's value where it set one that is tighter. */
static __always_inline __u32 sh_tighter(__u32 policed, __u32 app)
{
	return choose_if(if_less(app - 1, policed), app, policed);
}

/* The application's value where it set one. */
static __always_inline __u32 sh_own(__u32 policed, __u32 app)
{
	return app | (policed & if_equal(app, 0));
}

/* The least user timeout, in milliseconds, that forgives enough lost probes. */
static __always_inline __u64 sh_need(const struct sh_options *policed, const struct sh_options *o)
{
	__u64 room = sh_max(o->count, sh_min(policed->count, SH_MIN_ROOM));

	return (o->idle_s + o->interval_s * room) * 1000;
}

/*
 * SH_TIGHTEN: the smaller of both values, each alone; then the rule that keeps
 * few lost packets from killing a healthy connection is restored on the result:
 * idle and interval are scaled down first, the user timeout is raised last.
 * Returns whether it had to be raised.
 */
static __always_inline bool sh_tighten(const struct sh_options *policed,
				       const struct sh_options *app, struct sh_options *out)
{
	__u64 ut = sh_tighter(policed->user_timeout_ms, app->user_timeout_ms), need, some;
	__u32 idle = sh_tighter(policed->idle_s, app->idle_s), less;
	__u32 interval = sh_tighter(policed->interval_s, app->interval_s);

	out->idle_s = idle;
	out->interval_s = interval;
	out->count = sh_tighter(policed->count, app->count);
	out->keepalive = 1;
	out->asked = 0;
	out->rto_max = 0;
	need = sh_need(policed, out);
	less = if_less_long(ut, need);
	some = need | (1 & ~less); /* never 0 */
	out->idle_s = choose_if(less, sh_max(idle * ut / some, 1), idle);
	out->interval_s = choose_if(less, sh_max(interval * ut / some, 1), interval);
	need = sh_need(policed, out);
	less = if_less_long(ut, need);
	out->user_timeout_ms = choose_if(less, need, ut);
	return less & 1;
}

/* SH_ALLOW: what the application set, the policy's value where it set none. */
static __always_inline void sh_allow(const struct sh_options *policed, const struct sh_options *app,
				     struct sh_options *out)
{
	__u32 asked = app->asked;

	out->user_timeout_ms =
		choose_if(if_any(asked & 1 << SH_OPT_USER_TIMEOUT), app->user_timeout_ms,
			  sh_own(policed->user_timeout_ms, app->user_timeout_ms));
	out->idle_s = sh_own(policed->idle_s, app->idle_s);
	out->interval_s = sh_own(policed->interval_s, app->interval_s);
	out->count = sh_own(policed->count, app->count);
	out->keepalive = choose_if(if_any(asked & 1 << SH_OPT_KEEPALIVE), app->keepalive,
				   policed->keepalive);
	out->asked = policed->asked;
}

/*
 * A policy that caps the retransmission timeout needs no user timeout: keepalive and
 * the kernel's own number of retransmissions bound the connection. One that the
 * application asked for, and may have, stays. Without one the kernel heeds
 * TCP_KEEPCNT: the room for lost probes is kept in it.
 */
static __always_inline void sh_cap(__u8 override, const struct sh_options *policed,
				   struct sh_options *out)
{
	__u32 caps =
		if_any(policed->rto_max) & if_equal(out->user_timeout_ms, policed->user_timeout_ms);
	__u32 room = sh_min(policed->count, SH_MIN_ROOM) & caps & ~if_equal(override, SH_ALLOW);

	out->rto_max = policed->rto_max;
	out->user_timeout_ms &= ~caps;
	out->count = sh_max(out->count, room);
}

/* The options to set, and whether the user timeout had to be raised for them. */
static __always_inline bool sh_combine(__u8 override, const struct sh_options *policed,
				       const struct sh_options *app, struct sh_options *out)
{
	bool raised = false;

	switch (override) {
	case SH_ENFORCE:
		*out = *policed;
		break;
	case SH_ALLOW:
		sh_allow(policed, app, out);
		break;
	default:
		raised = sh_tighten(policed, app, out);
	}
	sh_cap(override, policed, out);
	return raised;
}

/* The user timeout while connect() is under way: the policy's, and the application's. */
static __always_inline __u32 sh_connect(__u8 override, __u32 policed, __u32 app)
{
	if (override == SH_ENFORCE || !app)
		return policed;
	if (override == SH_ALLOW)
		return app;
	return sh_min(app, policed);
}

#endif
