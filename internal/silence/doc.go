// SPDX-License-Identifier: Apache-2.0

// Package silence watches the node's managed connections for requests that stay
// unanswered, where the policy says so (silence), and hands the suspects to whoever
// judges them.
//
// What makes a suspect the program decides that passes over all connections
// (loader.Programs.Silent), which remembers whom it told of. This package decides
// when a pass has its turn: where no policy in force has a silence there is none.
//
// It looks at no socket, judges nothing and closes nothing.
//
// Privileges and kernel: those of loader.Programs.Silent; where the kernel refuses
// that, Run ends and says so. Goroutines: Run is for one goroutine and starts none;
// every other method may be called from any.
package silence
