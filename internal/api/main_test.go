// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"io"
	"net"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// clientOf makes the test's program a client of that socket instead: it sends
// what stands on stdin and writes the answer to stdout.
const clientOf = "SOCKHEALTH_TEST_CLIENT_OF"

func TestMain(m *testing.M) {
	if socket := os.Getenv(clientOf); socket != "" {
		client(socket)
		return
	}
	goleak.VerifyTestMain(m)
}

func client(socket string) {
	c, err := net.Dial("unix", socket)
	if err == nil {
		_, err = io.Copy(c, os.Stdin)
	}
	if err == nil {
		_, err = io.Copy(os.Stdout, c)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
