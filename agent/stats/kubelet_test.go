package stats

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/agent/host"
	"github.com/shoal-project/shoal/agent/metrics"
	"github.com/shoal-project/shoal/tests/dashboards"
)

// TestKubeletsPage: what dashboards read of a kubelet and of a proxy is on the page
// of an agent that has done something.
func TestKubeletsPage(t *testing.T) {
	p := newProvider(&measured{})
	p.Build = Build{Version: "v1.36.3+test", Commit: "abc"}
	p.Counts = metrics.NewAgent()
	p.Counts.Requests.Inc("200", "GET", "h:6443")
	p.Counts.RequestDurations.Observe(time.Second, "GET", "h:6443")
	p.Counts.Storage.Observe(time.Second, "kubernetes.io/secret", "volume_mount", "success", "false")
	dir := t.TempDir()
	ill := true
	p.Volumes = func(context.Context) []Volume {
		use := &host.FileSystem{Bytes: 7}
		return []Volume{{Namespace: "b", Claim: "data", Path: dir, Use: use}, {Namespace: "a", Claim: "data", Use: use},
			{Namespace: "b", Claim: "data", Path: dir, Use: use}, {Namespace: "a", Claim: "lost", Abnormal: &ill}}
	}
	p.VolumeNumbers = func() []VolumeNumber { return []VolumeNumber{{"kubernetes.io/secret", 2, 1}} }
	p.ClientCertificateEnd = func() time.Time { return time.Now().Add(-time.Hour) }
	p.ServerCertificateEnd = func() time.Time { return time.Now().Add(time.Hour) }
	page := string(text(t, p.Metrics))
	for _, server := range []string{"kubelet", "proxy"} {
		if missing := dashboards.Missing(page, server); len(missing) > 0 {
			t.Errorf("dashboards miss of %s: %v", server, missing)
		}
	}
	for _, want := range []string{
		`kubelet_certificate_manager_client_ttl_seconds -3600`,
		`kubelet_certificate_manager_server_ttl_seconds 3600`,
		`git_commit="abc",git_tree_state="clean",git_version="v1.36.3+test"`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="desired_state_of_world"} 2`,
		`volume_manager_total_volumes{plugin_name="kubernetes.io/secret",state="actual_state_of_world"} 1`,
		`rest_client_requests_total{code="200",method="GET",host="h:6443"} 1`,
		`kubelet_pod_start_duration_seconds_count 0`,
		`kubelet_volume_stats_health_status_abnormal{namespace="a",persistentvolumeclaim="lost"} 1`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	var claims []string
	for line := range strings.Lines(page) {
		if labels, ok := strings.CutPrefix(line, "kubelet_volume_stats_capacity_bytes{"); ok {
			claims = append(claims, labels[:strings.Index(labels, "}")])
		}
	}
	want := []string{`namespace="a",persistentvolumeclaim="data"`, `namespace="b",persistentvolumeclaim="data"`}
	if !slices.Equal(claims, want) {
		t.Errorf("claims %q, want each once that is there: %q", claims, want)
	}
}

var errSick = errors.New("sick")

func TestHealth(t *testing.T) {
	for well, err := range map[string]error{"1": nil, "0": errSick} {
		var out strings.Builder
		if e := Health(&out, err); e != nil {
			t.Fatal(e)
		}
		want := `kubernetes_healthcheck{name="ping",type="healthz"} ` + well + "\n"
		if !strings.Contains(out.String(), want) {
			t.Errorf("%v: %s", err, out.String())
		}
	}
}
