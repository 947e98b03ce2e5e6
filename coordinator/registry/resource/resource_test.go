package resource

import (
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

func expect(t *testing.T, name string, errs field.ErrorList, want string) {
	t.Helper()
	if want == "" && len(errs) > 0 || want != "" &&
		(len(errs) == 0 || !strings.Contains(errs.ToAggregate().Error(), want)) {
		t.Errorf("%s: %v, want %q", name, errs, want)
	}
}

// KEP-4381: the messages are v1.36's.
func TestValidateClaim(t *testing.T) {
	type T = resourcev1.ResourceClaimSpec
	for name, c := range map[string]struct {
		change func(*T)
		want   string
	}{
		"good":     {func(*T) {}, ""},
		"nothing":  {func(s *T) { s.Devices.Requests[0].Exactly = nil }, "exactly one of `exactly` or `firstAvailable` is required"},
		"no_class": {func(s *T) { s.Devices.Requests[0].Exactly.DeviceClassName = "" }, "spec.devices.requests[0].exactly.deviceClassName: Required value"},
		"twice":    {func(s *T) { s.Devices.Requests = append(s.Devices.Requests, s.Devices.Requests[0]) }, `Duplicate value: "r"`},
		"all_and_count": {func(s *T) { s.Devices.Requests[0].Exactly.AllocationMode = resourcev1.DeviceAllocationModeAll },
			"must not be specified when allocationMode is 'All'"},
		"selector": {func(s *T) {
			s.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{
				{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "x"`}}}
		}, ""},
		"syntax": {func(s *T) {
			s.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{
				{CEL: &resourcev1.CELDeviceSelector{Expression: "1 +"}}}
		}, "compilation failed"},
		"field": {func(s *T) {
			s.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{
				{CEL: &resourcev1.CELDeviceSelector{Expression: `device.colour == "red"`}}}
		}, "undefined field 'colour'"},
		"number": {func(s *T) {
			s.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{
				{CEL: &resourcev1.CELDeviceSelector{Expression: "1 + 1"}}}
		}, "must evaluate to bool"},
		"constraint": {func(s *T) {
			s.Devices.Constraints = []resourcev1.DeviceConstraint{
				{Requests: []string{"x"}, MatchAttribute: ptr.To(resourcev1.FullyQualifiedName("a.b/c"))}}
		}, "must be the name of a request in the claim"},
		"attribute": {func(s *T) {
			s.Devices.Constraints = []resourcev1.DeviceConstraint{
				{MatchAttribute: ptr.To(resourcev1.FullyQualifiedName("c"))}}
		}, "a fully qualified name must be a domain and a name separated by a slash"},
		"config": {func(s *T) {
			opaque := &resourcev1.OpaqueDeviceConfiguration{Driver: "a.b",
				Parameters: runtime.RawExtension{Raw: []byte("1")}}
			s.Devices.Config = []resourcev1.DeviceClaimConfiguration{
				{DeviceConfiguration: resourcev1.DeviceConfiguration{Opaque: opaque}}}
		}, "must be a valid JSON object"},
	} {
		s := &T{
			Devices: resourcev1.DeviceClaim{
				Requests: []resourcev1.DeviceRequest{
					{Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "c"}}}}}
		defaultRequests(s.Devices.Requests)
		c.change(s)
		expect(t, name, validateClaim(s, field.NewPath("spec")), c.want)
	}
}

func TestValidateSlice(t *testing.T) {
	type T = resourcev1.ResourceSliceSpec
	for name, c := range map[string]struct {
		change func(*T)
		want   string
	}{
		"good":    {func(s *T) { s.Devices = []resourcev1.Device{{Name: "d"}} }, ""},
		"nowhere": {func(s *T) { s.NodeName = nil }, "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"},
		"two":     {func(s *T) { s.AllNodes = ptr.To(true) }, "but multiple fields are set"},
		"count":   {func(s *T) { s.Pool.ResourceSliceCount = 0 }, "spec.pool.resourceSliceCount: Invalid value: 0: must be greater than zero"},
		"driver":  {func(s *T) { s.Driver = "a b" }, "spec.driver: Invalid value"},
		"twice":   {func(s *T) { s.Devices = []resourcev1.Device{{Name: "d"}, {Name: "d"}} }, `Duplicate value: "d"`},
		"value": {func(s *T) {
			s.Devices = []resourcev1.Device{
				{Name: "d", Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a": {}}}}
		}, "exactly one value must be specified"},
		"version": {func(s *T) {
			s.Devices = []resourcev1.Device{
				{Name: "d",
					Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"a": {VersionValue: ptr.To("1")}}}}
		}, "must be a string compatible with semver.org spec 2.0.0"},
		"per_device": {func(s *T) { s.Devices = []resourcev1.Device{{Name: "d", AllNodes: ptr.To(true)}} }, "can only be set if `perDeviceNodeSelection` is set to true"},
	} {
		s := &T{Driver: "a.b", Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1}, NodeName: ptr.To("n")}
		c.change(s)
		expect(t, name, validateSlice(s, nil), c.want)
	}
	old := &T{Driver: "a.b", Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1}, NodeName: ptr.To("n")}
	changed := old.DeepCopy()
	changed.NodeName = ptr.To("m")
	expect(t, "moved", validateSlice(changed, old), "spec.nodeName: Invalid value")
}

func TestClaimStatus(t *testing.T) {
	c := &resourcev1.ResourceClaim{}
	c.Spec.Devices.Requests = []resourcev1.DeviceRequest{{Name: "r"}}
	result := resourcev1.DeviceRequestAllocationResult{Request: "r", Driver: "a.b", Pool: "p", Device: "d"}
	old := c.DeepCopy()
	c.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "x", UID: "u"}}
	expect(t, "reserved", validateClaimStatus(c, old), "may not be specified when `allocated` is not set")
	c.Status.Allocation = &resourcev1.AllocationResult{
		Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{result}}}
	c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "a.b", Pool: "p", Device: "d"}}
	expect(t, "allocated", validateClaimStatus(c, old), "")
	if stateCell(c) != "allocated,reserved" || stateCell(old) != "pending" {
		t.Error(stateCell(c), stateCell(old))
	}
	freed := c.DeepCopy()
	freed.Status.Allocation, freed.Status.ReservedFor = nil, nil
	dropReleased(freed, c)
	expect(t, "freed", validateClaimStatus(freed, c), "")
	if freed.Status.Devices != nil {
		t.Errorf("%+v", freed.Status)
	}
}
