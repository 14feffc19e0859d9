// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"net"
	"net/http"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// servesFD names, in the environment of a child process, the descriptor of a
// listener that it serves until it is killed.
const servesFD = "SOCKHEALTH_TEST_SERVES_FD3"

func TestMain(m *testing.M) {
	if os.Getenv(servesFD) != "" {
		serve()
	}
	goleak.VerifyTestMain(m)
}

// serve is a real application, in a process of its own.
func serve() {
	ln, err := net.FileListener(os.NewFile(3, "listener"))
	if err == nil {
		err = http.Serve(ln, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("well\n")) }))
	}
	panic(err)
}
