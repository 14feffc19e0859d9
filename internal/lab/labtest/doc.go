// SPDX-License-Identifier: Apache-2.0

// Package labtest gives tests a lab of their own and the connections in it. It
// is for tests only; package lab says what a lab is and which privileges it
// needs.
//
// Every helper ends the test on the first error (t.Fatal), so it must be called
// from the test's own goroutine, and cleans up when the test ends. Without root
// the test is skipped, but fails where CI=true or SOCKHEALTH_MUST_RUN=1 says
// that it must run.
package labtest
