// SPDX-License-Identifier: Apache-2.0

// Package reload keeps the policy in force in step with its file: it reads the
// file when it changes, or when asked, and hands over what is right. A bad file
// is refused whole and the policy in force stays.
//
// It does not know what putting a policy in force means, and handles no signal.
// It needs no privilege but to read the file. One goroutine runs in Run; the
// other methods may be called from any.
package reload
