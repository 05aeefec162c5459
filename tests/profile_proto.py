"""perftools.profiles.Profile, as pprof's documentation has it, for the protobuf library."""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Message: fields by number; a * repeats, an upper case name is a message.
MESSAGES = {
    "ValueType": {1: "type int64", 2: "unit int64"},
    "Label": {1: "key int64", 2: "str int64", 3: "num int64", 4: "num_unit int64"},
    "Sample": {1: "location_id uint64*", 2: "value int64*", 3: "label Label*"},
    "Mapping": {1: "id uint64", 2: "memory_start uint64", 3: "memory_limit uint64",
                4: "file_offset uint64", 5: "filename int64", 6: "build_id int64",
                7: "has_functions bool", 8: "has_filenames bool", 9: "has_line_numbers bool",
                10: "has_inline_frames bool"},
    "Line": {1: "function_id uint64", 2: "line int64"},
    "Location": {1: "id uint64", 2: "mapping_id uint64", 3: "address uint64", 4: "line Line*",
                 5: "is_folded bool"},
    "Function": {1: "id uint64", 2: "name int64", 3: "system_name int64", 4: "filename int64",
                 5: "start_line int64"},
    "Profile": {1: "sample_type ValueType*", 2: "sample Sample*", 3: "mapping Mapping*",
                4: "location Location*", 5: "function Function*", 6: "string_table string*",
                7: "drop_frames int64", 8: "keep_frames int64", 9: "time_nanos int64",
                10: "duration_nanos int64", 11: "period_type ValueType", 12: "period int64",
                13: "comment int64*", 14: "default_sample_type int64"},
}


def _profile_class():
    file = descriptor_pb2.FileDescriptorProto(name="profile.proto", package="perftools.profiles",
                                              syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in MESSAGES.items():
        described = file.message_type.add(name=message)
        for number, text in fields.items():
            name, kind = text.rstrip("*").split()
            label = kinds.LABEL_REPEATED if text.endswith("*") else kinds.LABEL_OPTIONAL
            field = described.field.add(name=name, number=number, label=label)
            if kind[0].isupper():
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".perftools.profiles.{kind}"
            else:
                field.type = getattr(kinds, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindMessageTypeByName("perftools.profiles.Profile")
    if hasattr(message_factory, "GetMessageClass"):  # from 4.22 on
        return message_factory.GetMessageClass(found)
    return message_factory.MessageFactory(pool).GetPrototype(found)


Profile = _profile_class()
