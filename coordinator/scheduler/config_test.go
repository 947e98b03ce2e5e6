package scheduler

import (
	"strings"
	"testing"
	"time"

	"github.com/shoal-project/shoal/coordinator/scheduler/plugins"
)

const configHead = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"

func TestConfiguration(t *testing.T) {
	k, err := decodeConfig([]byte(configHead + `
percentageOfNodesToScore: 40
leaderElection: {leaderElect: true}
podInitialBackoffSeconds: 2
profiles:
- schedulerName: default-scheduler
  plugins:
    score:
      disabled: [{name: ImageLocality}]
      enabled: [{name: NodeResourcesFit, weight: 5}]
  pluginConfig:
  - name: NodeResourcesFit
    args: {apiVersion: kubescheduler.config.k8s.io/v1, kind: NodeResourcesFitArgs, scoringStrategy: {type: MostAllocated}}
- schedulerName: bare
  percentageOfNodesToScore: 100
  plugins:
    multiPoint:
      disabled: [{name: "*"}]
      enabled: [{name: PrioritySort}, {name: NodeResourcesFit}, {name: DefaultBinder}]
`))
	if err != nil {
		t.Fatal(err)
	}
	s, err := readProfiles(k)
	if err != nil {
		t.Fatal(err)
	}
	built, err := buildAll(s.profiles, func(string) *plugins.Deps { return &plugins.Deps{} })
	if err != nil {
		t.Fatal(err)
	}
	weights := map[string]int64{}
	for _, w := range built[0].scores {
		weights[w.Name()] = w.weight
	}
	if weights["NodeResourcesFit"] != 5 || weights["TaintToleration"] != 3 || weights["ImageLocality"] != 0 ||
		len(built[0].filters) != 14 {
		t.Errorf("default-scheduler: weights %v, %d filters", weights, len(built[0].filters))
	}
	if p := built[1]; len(p.filters) != 1 || len(p.scores) != 1 || p.percentage != 100 || len(p.postFilter) != 0 {
		t.Errorf("bare: %d filters, %d scores, %d %%", len(p.filters), len(p.scores), p.percentage)
	}
	if built[0].percentage != 40 || s.initialBackoff.Seconds() != 2 {
		t.Errorf("percentage %d, back-off %v", built[0].percentage, s.initialBackoff)
	}
}

// TestPatience: a binding has the time that the plugins' arguments give, and ten minutes.
func TestPatience(t *testing.T) {
	for args, want := range map[string]time.Duration{
		"":                                      10*time.Minute + bindTimeout,
		"VolumeBinding {bindTimeoutSeconds: 5}": 10*time.Minute + bindTimeout, // that of devices
		"VolumeBinding {bindTimeoutSeconds: 3600}": time.Hour + bindTimeout,
		"DynamicResources {bindingTimeout: 2h}":    2*time.Hour + bindTimeout,
	} {
		text := "profiles: [{}]"
		if name, of, ok := strings.Cut(args, " "); ok {
			text = "profiles: [{pluginConfig: [{name: " + name + ", args: " + of + "}]}]"
		}
		k, err := decodeConfig([]byte(configHead + text))
		if err != nil {
			t.Fatal(err)
		}
		s, err := readProfiles(k)
		if err != nil {
			t.Fatal(err)
		}
		built, err := buildAll(s.profiles, func(string) *plugins.Deps { return &plugins.Deps{} })
		if err != nil {
			t.Fatal(err)
		}
		if got := built[0].patience(); got != want {
			t.Errorf("%q: %v, want %v", args, got, want)
		}
	}
}

func TestBadConfiguration(t *testing.T) {
	for name, tt := range map[string]struct{ yaml, want string }{
		"unknown-field":    {"profile: []", `unknown field "profile"`},
		"unknown-plugin":   {"profiles: [{plugins: {filter: {enabled: [{name: Nope}]}}}]", `profiles[0].plugins.filter.enabled: plugin "Nope" does not exist`},
		"unknown-disabled": {"profiles: [{plugins: {score: {disabled: [{name: Nope}]}}}]", `plugin "Nope" does not exist`},
		"unknown-args":     {"profiles: [{pluginConfig: [{name: InterPodAffinity, args: {weight: 3}}]}]", `unknown field "weight"`},
		"bad-args": {
			"profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 300}}]}]", "hardPodAffinityWeight: Invalid value: 300"},
		"args-of-none": {"profiles: [{pluginConfig: [{name: NodeName, args: {a: 1}}]}]", `unknown field "a"`},
		"wait-for-volumes": {"profiles: [{pluginConfig: [{name: VolumeBinding, args: {bindTimeoutSeconds: -1}}]}]",
			"bindTimeoutSeconds: -1 is not from 0 to 86400"},
		"score-of-volumes": {"profiles: [{pluginConfig: [{name: VolumeBinding, args: {shape: [{utilization: 0, score: 1}]}}]}]",
			"args.shape"},
		"search-for-devices": {"profiles: [{pluginConfig: [{name: DynamicResources, args: {filterTimeout: -1s}}]}]",
			"filterTimeout: -1s must not be negative"},
		"wait-for-devices": {"profiles: [{pluginConfig: [{name: DynamicResources, args: {bindingTimeout: 0s}}]}]",
			"bindingTimeout: 0s must be at least 1s"},
		"no-binder":         {"profiles: [{plugins: {bind: {disabled: [{name: '*'}]}}}]", "at least one bind plugin is needed"},
		"duplicate-profile": {"profiles: [{schedulerName: a}, {schedulerName: a}]", `profiles[1].schedulerName: Duplicate value: "a"`},
		"percentage":        {"percentageOfNodesToScore: 120", "percentageOfNodesToScore: Invalid value: 120"},
		"wrong-point":       {"profiles: [{plugins: {score: {enabled: [{name: NodeName}]}}}]", `plugin "NodeName" does not extend score plugin`},
		"extender-url":      {"extenders: [{filterVerb: f}]", "extenders[0].urlPrefix: Required value"},
		"extender-weight":   {"extenders: [{urlPrefix: 'http://x', prioritizeVerb: p}]", "extenders[0].weight: Invalid value: 0"},
		"extender-binders": {"extenders: [{urlPrefix: 'http://x', bindVerb: b}, {urlPrefix: 'http://y', bindVerb: b}]",
			"found 2 extenders implementing bind"},
		"extender-resource": {"extenders: [{urlPrefix: 'http://x', managedResources: [{name: cpu}]}]",
			`extenders[0].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name`},
		"extender-tls":  {"extenders: [{urlPrefix: 'https://x', tlsConfig: {caFile: /absent}}]", "extenders[0].tlsConfig: "},
		"backoff-order": {"podInitialBackoffSeconds: 20", "podMaxBackoffSeconds: Invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			k, err := decodeConfig([]byte(configHead + tt.yaml))
			var s *settings
			if err == nil {
				s, err = readProfiles(k)
			}
			if err == nil {
				_, err = buildAll(s.profiles, func(string) *plugins.Deps { return &plugins.Deps{} })
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
