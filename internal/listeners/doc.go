// SPDX-License-Identifier: Apache-2.0

// Package listeners infers who opened a connection that nobody saw open, from the
// listeners of its network namespace. Whoever matches such a connection with the
// policy in Go asks here.
//
// It infers as adoption does in the kernel, and keeps nothing.
//
// Privileges: those of package sockdiag to list, CAP_SYS_ADMIN to enter the
// namespace. Goroutines: what Read returns may be shared.
package listeners
