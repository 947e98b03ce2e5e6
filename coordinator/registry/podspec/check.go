package podspec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/shoal-project/shoal/coordinator/registry/fieldrule"
)

func dnsLabel(value string, p *field.Path) field.ErrorList {
	return fieldrule.Invalid(p, value, validation.IsDNS1123Label(value))
}

// dnsSubdomain checks the name of an object.
func dnsSubdomain(value string, p *field.Path) field.ErrorList {
	return fieldrule.Invalid(p, value, apivalidation.NameIsDNSSubdomain(value, false))
}

func subdomainMessages(value string, p *field.Path) field.ErrorList {
	return fieldrule.Invalid(p, value, validation.IsDNS1123Subdomain(value))
}

func qualifiedName(value string, p *field.Path) field.ErrorList {
	return fieldrule.Invalid(p, value, validation.IsQualifiedName(value))
}

// OneOf requires value to be set and among supported, which are listed in the
// error as given.
func OneOf[T ~string](value T, p *field.Path, supported ...T) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return Among(value, p, supported...)
}

// Among is OneOf where the empty value may be one of the supported.
func Among[T ~string](value T, p *field.Path, supported ...T) field.ErrorList {
	if !slices.Contains(supported, value) {
		return field.ErrorList{field.NotSupported(p, value, supported)}
	}
	return nil
}

func required(value string, p *field.Path) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(p, "")}
	}
	return nil
}

func fileMode(mode *int32, p *field.Path) field.ErrorList {
	if mode != nil && (*mode > 0o777 || *mode < 0) {
		return field.ErrorList{field.Invalid(p, *mode, "must be a number between 0 and 0777 (octal), both inclusive")}
	}
	return nil
}

// relativePath refuses an absolute path and one that climbs.
func relativePath(value string, p *field.Path) (errs field.ErrorList) {
	if path.IsAbs(value) {
		errs = append(errs, field.Invalid(p, value, "must be a relative path"))
	}
	return append(errs, noBacksteps(value, p)...)
}

func noBacksteps(value string, p *field.Path) field.ErrorList {
	if slices.Contains(strings.Split(value, "/"), "..") {
		return field.ErrorList{field.Invalid(p, value, "must not contain '..'")}
	}
	return nil
}

// unreservedPath is relativePath that does not begin with two dots, the prefix
// of the atomic writer's own entries in a volume.
func unreservedPath(value string, p *field.Path) field.ErrorList {
	errs := relativePath(value, p)
	if strings.HasPrefix(value, "..") && !strings.HasPrefix(value, "../") {
		errs = append(errs, field.Invalid(p, value, "must not start with '..'"))
	}
	return errs
}

// ValidatePort checks a port given by number or name.
func ValidatePort(port intstr.IntOrString, p *field.Path) field.ErrorList {
	switch port.Type {
	case intstr.Int:
		return fieldrule.Invalid(p, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
	case intstr.String:
		return fieldrule.Invalid(p, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return field.ErrorList{field.InternalError(p, fmt.Errorf("unknown type: %v", port.Type))}
}
