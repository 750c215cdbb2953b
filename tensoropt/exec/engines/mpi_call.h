// Calls of MPI: an error becomes TensorFlow's, and a count may be beyond the range of int.

#ifndef TENSOROPT_EXEC_ENGINES_MPI_CALL_H_
#define TENSOROPT_EXEC_ENGINES_MPI_CALL_H_

#include <mpi.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tensoropt {

// The largest count given to an MPI function that takes an int. Lowered by tests only.
inline std::atomic<int64_t> max_count{INT_MAX};

inline absl::Status FromMpi(const char* function, int code) {
  if (code == MPI_SUCCESS) return absl::OkStatus();
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  return absl::InternalError(absl::StrCat(function, " failed: ", std::string(text, length), " (MPI error ", code, ")"));
}

#define TENSOROPT_RETURN_IF_ERROR(expression)     \
  do {                                            \
    absl::Status status_ = (expression);          \
    if (!status_.ok()) return status_;            \
  } while (0)

#define TENSOROPT_MPI(function, ...) TENSOROPT_RETURN_IF_ERROR(FromMpi(#function, function(__VA_ARGS__)))

// `count()` elements of `type()` that cover any number of bytes, also beyond the range of int.
class ByteRange {
 public:
  ByteRange() = default;
  ByteRange(const ByteRange&) = delete;
  ByteRange& operator=(const ByteRange&) = delete;
  ~ByteRange() {
    if (owned_) MPI_Type_free(&type_);
  }

  absl::Status Init(int64_t bytes) {
    const int64_t unit = max_count.load(std::memory_order_relaxed);
    if (bytes <= unit) {
      count_ = static_cast<int>(bytes);
      return absl::OkStatus();
    }
    // bytes = whole * unit + rest, as one datatype: [unit] * whole, then rest single bytes.
    const int64_t whole = bytes / unit;
    if (whole > INT_MAX) return absl::InvalidArgumentError(absl::StrCat(bytes, " bytes are too many for MPI"));
    MPI_Datatype block, body;
    TENSOROPT_MPI(MPI_Type_contiguous, static_cast<int>(unit), MPI_BYTE, &block);
    TENSOROPT_MPI(MPI_Type_contiguous, static_cast<int>(whole), block, &body);
    int lengths[2] = {1, static_cast<int>(bytes % unit)};
    MPI_Aint offsets[2] = {0, static_cast<MPI_Aint>(whole * unit)};
    MPI_Datatype types[2] = {body, MPI_BYTE};
    TENSOROPT_MPI(MPI_Type_create_struct, 2, lengths, offsets, types, &type_);
    owned_ = true;
    TENSOROPT_MPI(MPI_Type_commit, &type_);
    TENSOROPT_MPI(MPI_Type_free, &body);
    TENSOROPT_MPI(MPI_Type_free, &block);
    count_ = 1;
    return absl::OkStatus();
  }

  int count() const { return count_; }
  MPI_Datatype type() const { return type_; }

 private:
  int count_ = 0;
  MPI_Datatype type_ = MPI_BYTE;
  bool owned_ = false;
};

}  // namespace tensoropt

#endif  // TENSOROPT_EXEC_ENGINES_MPI_CALL_H_
