// SPDX-License-Identifier: Apache-2.0

// Package judge has many connections judged at once, each in some trouble or none,
// and compares what the agent says and does with what is true of them. What is true
// it knows by itself: from what it did to the wire, and from what both ends of each
// connection got (bytes, errors, and when).
//
// There is one test in it, beside those of how it weighs what came of that. The agent
// is the program that is shipped, a process of its own; the applications' reports come
// from another, by package report; the connections are real, through the lab's router.
// Each scenario is one entry of a list (dead_test.go, outage_test.go, ...): what is
// played, on which connections, and which verdict is wanted. Timing is random, by a
// seed that is printed. "make judge" runs it at length and prints its table; the test
// alone is a small run of the same.
//
// It needs root and Linux 5.10; every namespace, cgroup and bpffs is its own.
package judge
