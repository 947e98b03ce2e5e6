package launch

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestSysctls(t *testing.T) {
	s, err := NewSysctls([]string{"kernel.msg*", "net.core.somaxconn"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name             string
		hostNet, hostIPC bool
		want             string
	}{
		{name: "net.ipv4.tcp_syncookies"},
		{name: "net/ipv4/tcp_syncookies"},
		{name: "kernel.msgmax"},
		{name: "net.core.somaxconn"},
		{name: "kernel.shmmax", want: `forbidden sysctl: "kernel.shmmax" not allowlisted`},
		{name: "vm.swappiness", want: `forbidden sysctl: "vm.swappiness" not allowlisted`},
		{name: "net.core.somaxconn", hostNet: true,
			want: `forbidden sysctl: "net.core.somaxconn" not allowed with host Net enabled`},
		{name: "kernel.msgmax", hostIPC: true,
			want: `forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`},
		{name: "kernel.msgmax", hostNet: true},
	} {
		p := &corev1.Pod{Spec: corev1.PodSpec{HostNetwork: c.hostNet, HostIPC: c.hostIPC,
			SecurityContext: &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: c.name, Value: "1"}}}}}
		got := ""
		if v := s.Admit(p); v != nil {
			got = v.Message
			if v.Reason != "SysctlForbidden" {
				t.Errorf("%s: reason %s", c.name, v.Reason)
			}
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
	for _, bad := range []string{"vm.swappiness", "*", "net..x", "kernel.*"} {
		if _, err := NewSysctls([]string{bad}); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
