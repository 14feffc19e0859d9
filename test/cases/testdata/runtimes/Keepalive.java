// SPDX-License-Identifier: Apache-2.0

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.net.Socket;
import jdk.net.ExtendedSocketOptions;

/** Sets keepalive as Java programs do: Keepalive HOST PORT WAY */
public class Keepalive {
    public static void main(String[] args) throws IOException {
        Socket s = new Socket(args[0], Integer.parseInt(args[1]));
        switch (args[2]) {
            case "on": // the kernel's two hours
                s.setKeepAlive(true);
                break;
            case "extended":
                s.setKeepAlive(true);
                s.setOption(ExtendedSocketOptions.TCP_KEEPIDLE, 300);
                s.setOption(ExtendedSocketOptions.TCP_KEEPINTERVAL, 60);
                s.setOption(ExtendedSocketOptions.TCP_KEEPCOUNT, 2);
                break;
            case "off":
                s.setKeepAlive(true);
                s.setKeepAlive(false);
                break;
            default:
                throw new IllegalArgumentException(args[2]);
        }
        System.out.println("set");
        BufferedReader said = new BufferedReader(new InputStreamReader(s.getInputStream()));
        try {
            for (String line; (line = said.readLine()) != null; ) {
                System.out.println(line);
            }
            System.out.println("end");
        } catch (IOException e) {
            System.out.println(e.getMessage().contains("timed out") ? "timed out" : e.toString());
        }
    }
}
