// SPDX-License-Identifier: Apache-2.0

// Package metrics shows the agent's figures to Prometheus, under the prefix
// sockhealth_, and answers health checks. docs/metrics.md lists every metric.
//
// It counts nothing but the time that verdicts take: one collector reads the
// agent's figures and the kernel's counters at each scrape. Labels are names
// from the policy file or words of closed lists, never an address, a port, a
// process or a cookie. Every series of a policy in force is there from the
// start, at 0, and is gone with its policy.
//
// A figure that cannot be read makes the scrape fail: an old or partial answer
// would look better than the truth.
//
// It needs no privilege of its own; its Kernel may. It has no goroutines, and
// everything may be used from several at once.
package metrics
