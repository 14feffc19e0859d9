// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Retries2 reads net.ipv4.tcp_retries2 of the calling thread's network namespace: how
// often the kernel retransmits before it gives up.
func Retries2() (int, error) {
	text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_retries2")
	if err != nil {
		return 0, fmt.Errorf("read how often the kernel retransmits: %w", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return 0, fmt.Errorf("read how often the kernel retransmits: %w", err)
	}
	return n, nil
}
