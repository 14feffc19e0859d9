// SPDX-License-Identifier: Apache-2.0

package prober

import (
	"fmt"
	"io"
	"net"
)

// talkSend writes the bytes of the policy. Any byte back is an answer; what
// follows is left to the end of the connection.
func talkSend(q question) talk {
	return func(c net.Conn) error {
		if _, err := io.WriteString(c, q.text); err != nil {
			return fmt.Errorf("send to %s: %w", q.to, err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			return fmt.Errorf("read from %s: %w", q.to, err)
		}
		return nil
	}
}
