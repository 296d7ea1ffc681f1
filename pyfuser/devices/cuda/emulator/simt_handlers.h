// The functions that instrumented code calls: -fsanitize=thread, address and undefined, and
// -fsanitize-coverage.  The sanitizers' own runtimes are not linked.  ThreadSanitizer's hooks tell
// of every access and function.  AddressSanitizer's tell of each access that may be out of bounds:
// with its runtime loaded into the process, accesses beyond a local array are found too.  Part of
// simt_runtime.cpp.
#pragma once

#define SIMT_HANDLER(name, bytes, access)                                            \
  extern "C" void name(void* address) {                                              \
    simt::check_access(address, bytes, access, __builtin_return_address(0));         \
  }
#define SIMT_HANDLERS(bytes)                                                         \
  SIMT_HANDLER(__tsan_read##bytes, bytes, simt::Access::read)                        \
  SIMT_HANDLER(__tsan_write##bytes, bytes, simt::Access::write)                      \
  SIMT_HANDLER(__tsan_unaligned_read##bytes, bytes, simt::Access::read)              \
  SIMT_HANDLER(__tsan_unaligned_write##bytes, bytes, simt::Access::write)            \
  SIMT_HANDLER(__tsan_volatile_read##bytes, bytes, simt::Access::read)               \
  SIMT_HANDLER(__tsan_volatile_write##bytes, bytes, simt::Access::write)
SIMT_HANDLERS(1)
SIMT_HANDLERS(2)
SIMT_HANDLERS(4)
SIMT_HANDLERS(8)
SIMT_HANDLERS(16)

extern "C" {
void __tsan_read_range(void* address, uint64_t bytes) {
  simt::check_access(address, bytes, simt::Access::read, __builtin_return_address(0));
}
void __tsan_write_range(void* address, uint64_t bytes) {
  simt::check_access(address, bytes, simt::Access::write, __builtin_return_address(0));
}
void __tsan_init() {}
void __sanitizer_cov_trace_pc() { simt::enter_basic_block(__builtin_return_address(0)); }
void __tsan_func_entry(void* caller) { simt::enter_function(caller); }
void __tsan_func_exit() { simt::leave_function(); }

void __assertfail(const char* what, const char*, unsigned, const char*, unsigned long) {
  simt::report("assertion failed: %s", what);
  simt::fail_at(__builtin_return_address(0));
}

// AddressSanitizer's runtime, if the process has it.
int __asan_address_is_poisoned(const void*) __attribute__((weak));
void* __asan_region_is_poisoned(void*, size_t) __attribute__((weak));
void __asan_poison_memory_region(const void*, size_t) __attribute__((weak));
void __asan_unpoison_memory_region(const void*, size_t) __attribute__((weak));

void __asan_init() {}
void __asan_version_mismatch_check_v8() {}
void __asan_handle_no_return() {}
void __asan_register_globals(void*, uint64_t) {}
void __asan_unregister_globals(void*, uint64_t) {}
// Of large variables, where they go out of scope and come into it; of others, the code does it itself.
void __asan_poison_stack_memory(uint64_t address, uint64_t bytes) {
  if (__asan_poison_memory_region) __asan_poison_memory_region((const void*)address, bytes);
}
void __asan_unpoison_stack_memory(uint64_t address, uint64_t bytes) {
  if (__asan_unpoison_memory_region) __asan_unpoison_memory_region((const void*)address, bytes);
}
}

static void check_local(void* address, uint64_t bytes, simt::Access access, void* place) {
  simt::check_access(address, bytes, access, place);
  if (__asan_region_is_poisoned && simt::is_local(address, bytes) &&
      __asan_region_is_poisoned(address, bytes)) {
    simt::report("%s %lu bytes outside of a local array", simt::verb(access), (unsigned long)bytes);
    simt::fail_at(place);
  }
}

#define SIMT_LOCAL_HANDLER(name, bytes, access)                                      \
  extern "C" void name(void* address) {                                              \
    check_local(address, bytes, access, __builtin_return_address(0));                \
  }
#define SIMT_LOCAL_HANDLERS(bytes)                                                   \
  SIMT_LOCAL_HANDLER(__asan_load##bytes##_noabort, bytes, simt::Access::read)        \
  SIMT_LOCAL_HANDLER(__asan_store##bytes##_noabort, bytes, simt::Access::write)
SIMT_LOCAL_HANDLERS(1)
SIMT_LOCAL_HANDLERS(2)
SIMT_LOCAL_HANDLERS(4)
SIMT_LOCAL_HANDLERS(8)
SIMT_LOCAL_HANDLERS(16)

extern "C" {
void __asan_loadN_noabort(void* address, uint64_t bytes) {
  check_local(address, bytes, simt::Access::read, __builtin_return_address(0));
}
void __asan_storeN_noabort(void* address, uint64_t bytes) {
  check_local(address, bytes, simt::Access::write, __builtin_return_address(0));
}

// Every handler of the undefined-behaviour checks gets data that begins with the source location.
struct SourceLocation {
  const char* file;
  uint32_t line, column;
};
// Of a load or store: what it is about.
struct TypeMismatch {
  SourceLocation where;
  const void* type;
  unsigned char log_alignment, kind;
};

[[noreturn]] static void undefined(const SourceLocation* where, const char* what, void* place) {
  simt::report("line %u: %s", where->line, what);
  simt::fail_at(place);
}
#define SIMT_UNDEFINED(name, what)                                                   \
  void __ubsan_handle_##name(SourceLocation* where) {                                \
    undefined(where, what, __builtin_return_address(0));                             \
  }
SIMT_UNDEFINED(out_of_bounds, "an index is outside of its array")
SIMT_UNDEFINED(divrem_overflow, "an integer is divided by zero, or the quotient overflows")
SIMT_UNDEFINED(shift_out_of_bounds, "a shift by more bits than there are, or by less than none")
SIMT_UNDEFINED(add_overflow, "a signed integer overflows")
SIMT_UNDEFINED(sub_overflow, "a signed integer overflows")
SIMT_UNDEFINED(mul_overflow, "a signed integer overflows")
SIMT_UNDEFINED(negate_overflow, "a signed integer overflows")
SIMT_UNDEFINED(pointer_overflow, "the computation of an address overflows")
SIMT_UNDEFINED(load_invalid_value, "a bool or an enumeration has an invalid value")
SIMT_UNDEFINED(vla_bound_not_positive, "an array has no elements")
SIMT_UNDEFINED(nonnull_arg, "an argument is a null pointer")
SIMT_UNDEFINED(nonnull_return_v1, "a result is a null pointer")
SIMT_UNDEFINED(invalid_builtin, "an argument of a function is outside of its domain")
SIMT_UNDEFINED(builtin_unreachable, "what can't be reached is reached")
SIMT_UNDEFINED(missing_return, "a function returns no value")
void __ubsan_handle_type_mismatch_v1(TypeMismatch* data, uint64_t address) {
  bool is_aligned = !(address & ((uint64_t(1) << data->log_alignment) - 1));
  undefined(&data->where,
            !address      ? "a load or store is of a null pointer"
            : !is_aligned ? "a load or store is not aligned to its type"
                          : "a load or store is larger than its object",
            __builtin_return_address(0));
}
}
