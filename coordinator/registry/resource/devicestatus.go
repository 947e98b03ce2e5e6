package resource

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	resourcev1 "k8s.io/api/resource/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// validateDeviceStatus checks what a driver says of a device that is in use.
func validateDeviceStatus(d *resourcev1.AllocatedDeviceStatus, allocated map[deviceID]bool,
	p *field.Path) field.ErrorList {
	errs := validateDriver(d.Driver, p.Child("driver"))
	errs = append(errs, validatePool(d.Pool, p.Child("pool"))...)
	errs = append(errs, validateLabel(d.Device, p.Child("device"))...)
	if d.ShareID != nil {
		errs = append(errs, validateUID(*d.ShareID, p.Child("shareID"))...)
	}
	if id := statusID(d); !allocated[id] {
		errs = append(errs, field.Invalid(p, id, "must be an allocated device in the claim"))
	}
	errs = append(errs,
		tooMany(len(d.Conditions), resourcev1.AllocatedDeviceStatusMaxConditions, p.Child("conditions"))...)
	errs = append(errs, metavalidation.ValidateConditions(d.Conditions, p.Child("conditions"))...)
	if d.Data != nil && len(d.Data.Raw) > 0 {
		errs = append(errs,
			validateObject(d.Data.Raw, resourcev1.AllocatedDeviceStatusDataMaxLength, p.Child("data"))...)
	}
	return append(errs, validateNetwork(d.NetworkData, p.Child("networkData"))...)
}

func validateNetwork(n *resourcev1.NetworkDeviceData, p *field.Path) (errs field.ErrorList) {
	if n == nil {
		return nil
	}
	if most := resourcev1.NetworkDeviceDataInterfaceNameMaxLength; len(n.InterfaceName) > most {
		errs = append(errs, field.TooLong(p.Child("interfaceName"), "", most))
	}
	if most := resourcev1.NetworkDeviceDataHardwareAddressMaxLength; len(n.HardwareAddress) > most {
		errs = append(errs, field.TooLong(p.Child("hardwareAddress"), "", most))
	}
	return append(errs, eachOnce(n.IPs, resourcev1.NetworkDeviceDataMaxIPs, p.Child("ips"),
		func(ip *string, at *field.Path) field.ErrorList { return validation.IsValidInterfaceAddress(at, *ip) },
		func(ip *string) string { return *ip })...)
}

// validateUID wants a UUID in its normal form.
func validateUID(uid string, p *field.Path) field.ErrorList {
	if err := uuid.Validate(uid); err != nil {
		return field.ErrorList{field.Invalid(p, uid, fmt.Sprintf("error validating uid: %v", err))}
	}
	if len(uid) != 36 || uid != strings.ToLower(uid) {
		return field.ErrorList{field.Invalid(p, uid, "uid must be in RFC 4122 normalized form, "+
			"`xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx` with lowercase hexadecimal characters")}
	}
	return nil
}

// validateBinding checks the conditions that a pod waits for, and those that end
// its waiting: both or none.
func validateBinding(ready, failed []string, p *field.Path) (errs field.ErrorList) {
	for _, l := range []struct {
		name string
		list []string
		most int
	}{
		{"bindingConditions", ready, resourcev1.BindingConditionsMaxSize},
		{"bindingFailureConditions", failed, resourcev1.BindingFailureConditionsMaxSize},
	} {
		at := p.Child(l.name)
		if many := tooMany(len(l.list), l.most, at); many != nil {
			errs = append(errs, many...)
			continue
		}
		for i, name := range l.list {
			errs = append(errs, metavalidation.ValidateLabelName(name, at.Index(i))...)
		}
	}
	for i, name := range ready {
		if slices.Contains(ready[:i], name) {
			errs = append(errs, field.Duplicate(p.Child("bindingConditions").Index(i), name))
		}
	}
	at := p.Child("bindingFailureConditions")
	for i, name := range failed {
		if slices.Contains(failed[:i], name) {
			errs = append(errs, field.Duplicate(at.Index(i), name))
		}
		if slices.Contains(ready, name) {
			errs = append(errs, field.Invalid(at.Index(i), name, "bindingFailureConditions must not overlap with bindingConditions"))
		}
	}
	if len(ready) == 0 && len(failed) > 0 {
		errs = append(errs, field.Invalid(p.Child("bindingConditions"), ready,
			"bindingConditions are required to use bindingFailureConditions"))
	}
	if len(failed) == 0 && len(ready) > 0 {
		errs = append(errs, field.Invalid(at, failed, "bindingFailureConditions are required to use bindingConditions"))
	}
	return errs
}
